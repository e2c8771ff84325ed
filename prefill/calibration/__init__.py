"""Finding the heads that retrieve; the files of the models for which that is done."""
