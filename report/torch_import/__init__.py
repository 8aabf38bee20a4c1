"""PyTorch modules as network files: docs/from-pytorch.md."""
