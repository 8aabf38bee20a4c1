"""The cost model of data-parallel training: docs/cost-model.md. lpsgd_predict.py is its command line."""
