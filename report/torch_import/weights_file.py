"""float32 tensors as a safetensors file: https://github.com/huggingface/safetensors#format."""

import json

import torch


def save(path, tensors):
    """{name: tensor}. Raises OSError."""
    header, at = {}, 0
    for name, tensor in tensors.items():
        end = at + 4 * tensor.numel()
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            file.write(tensor.detach().to(torch.float32).contiguous().numpy().tobytes())
