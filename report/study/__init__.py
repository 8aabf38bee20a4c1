"""A grid of training runs: described by a YAML file, started and resumed by `lpsgd study`, gathered in
tables."""
