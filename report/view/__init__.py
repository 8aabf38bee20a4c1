"""The report of a set of runs: figures and tables in the layout of the EDBT 2018 study, and one HTML page."""
