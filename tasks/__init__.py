"""The steps of the pipeline, each a plain function that the DAGs, the command line and the tests call."""
