"""What lookup-stats shows: inputs, rows, tables, advice."""
