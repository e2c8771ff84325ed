"""Counting on a Dask cluster, of files here or at URLs."""
