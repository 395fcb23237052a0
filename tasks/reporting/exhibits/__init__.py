"""What each pipeline shows of the paper: its figures, tables and findings, from the results of a run."""
