"""Transformers as PyTorch modules, for torch_networks: those of configs/networks, and two for tests alone."""

import torch
from torch import nn


class LayerNorm(nn.LayerNorm):
    """In float32, as autocast computes it on GPUs; on CPUs it fails at bfloat16."""

    def forward(self, x):
        return super().forward(x.to(self.weight.dtype))


class Attention(nn.Module):
    """nn.MultiheadAttention of a sequence to itself, whose first product is a module of its own."""

    def __init__(self, features, heads, causal=False):
        super().__init__()
        self.in_proj = nn.Linear(features, 3 * features)
        self.out_proj = nn.Linear(features, features)
        self.heads, self.causal = heads, causal

    def forward(self, x, behind=None):
        frames = x.shape[1]
        later = torch.ones(frames, frames, dtype=torch.bool).triu(1) if self.causal else None
        x = x.transpose(0, 1)
        weights, out = (self.in_proj.weight, self.in_proj.bias), (self.out_proj.weight, self.out_proj.bias)
        found, _ = nn.functional.multi_head_attention_forward(
            x, x, x, x.shape[2], self.heads, *weights, None, None, False, 0.0, *out,
            training=self.training, key_padding_mask=behind, need_weights=False, attn_mask=later)
        return found.transpose(0, 1)


class TransformerBlock(nn.Module):
    def __init__(self, features, heads, causal=False, inner=4):
        super().__init__()
        self.ln1 = LayerNorm(features, eps=1e-6)
        self.attention = Attention(features, heads, causal)
        self.ln2 = LayerNorm(features)
        self.fc1 = nn.Linear(features, inner * features)
        self.fc2 = nn.Linear(inner * features, features)

    def forward(self, x, behind=None):
        x = x + self.attention(self.ln1(x), behind)
        return x + self.fc2(nn.functional.gelu(self.fc1(self.ln2(x))))


class SelfAttention(nn.Module):
    """As language models in PyTorch write it: by the fused function where there is one."""

    def __init__(self, features, heads, causal):
        super().__init__()
        self.in_proj = nn.Linear(features, 3 * features)
        self.out_proj = nn.Linear(features, features)
        self.heads, self.causal = heads, causal

    def forward(self, x):
        batch, frames, features = x.shape
        q, k, v = self.in_proj(x).view(batch, frames, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        if hasattr(nn.functional, "scaled_dot_product_attention"):
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        else:
            scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
            if self.causal:
                scores = scores + torch.full((frames, frames), float("-inf"), device=x.device).triu(1)
            y = scores.softmax(-1).to(v.dtype) @ v
        return self.out_proj(y.transpose(1, 2).reshape(batch, frames, features))


class TransformerLayer(nn.Module):
    """Of transformer_ptb and vit_cifar: normalisation comes first."""

    def __init__(self, features, heads, causal=False, dropout=0.0, eps=1e-5):
        super().__init__()
        self.norm1 = LayerNorm(features, eps=eps)
        self.self_attn = SelfAttention(features, heads, causal)
        self.norm2 = LayerNorm(features, eps=eps)
        self.linear1, self.linear2 = nn.Linear(features, 4 * features), nn.Linear(4 * features, features)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        x = x + self.dropout(self.self_attn(self.norm1(x)))
        return x + self.dropout(self.linear2(nn.functional.gelu(self.linear1(self.norm2(x)))))


class TransformerPtb(nn.Module):
    def __init__(self, depth=4, width=256, heads=4, frames=64):
        super().__init__()
        self.encoder = nn.Embedding(10000, width)
        self.position = Vector(frames, width)
        self.dropout = nn.Dropout(0.2)
        self.layers = nn.Sequential(*(TransformerLayer(width, heads, True, 0.2) for _ in range(depth)))
        self.norm = LayerNorm(width)
        self.decoder = nn.Linear(width, 10000)

    def forward(self, x, lengths=None):
        x = self.encoder(x.long()) + self.position.weight[: x.shape[1]]
        return self.decoder(self.norm(self.layers(self.dropout(x))))


class Vit(nn.Module):
    """vit_cifar, or of other sizes vit_b_16, whose tensors have other names."""

    def __init__(self, depth, width, heads, side, patch, classes):
        super().__init__()
        self.conv_proj = nn.Conv2d(3, width, patch, patch)
        self.class_token = Vector(width)
        self.position = Vector((side // patch) ** 2 + 1, width)
        self.layers = nn.Sequential(*(TransformerLayer(width, heads, eps=1e-6) for _ in range(depth)))
        self.norm = LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        x = self.conv_proj(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.weight.expand(len(x), 1, -1), x], 1) + self.position.weight
        return self.head(self.norm(self.layers(x))[:, 0])


class Vector(nn.Module):
    """A parameter that is a layer of ours."""

    def __init__(self, *shape):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(shape))


class VisionTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 24, 4, 4)
        self.norm0 = LayerNorm(24)
        self.token = Vector(24)
        self.position = Vector(12, 24)
        self.block1, self.block2 = TransformerBlock(24, 3), TransformerBlock(24, 4)
        self.norm = LayerNorm(24)
        self.fc = nn.Linear(24, 10)

    def forward(self, x):
        x = self.norm0(self.patches(x).permute(0, 2, 3, 1)).flatten(1, 2)
        x = torch.cat([self.token.weight.expand(len(x), 1, -1), x], 1)
        x = x + self.position.weight[: x.shape[1]]
        x = self.block2(self.block1(x))
        return self.fc(self.norm(x[:, 0] + x.mean(1)))


class CausalTransformer(nn.Module):
    """Of tokens, whose table is the last layer's weight, too. Its second block attends to the whole sequence."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(17, 20)
        self.position = nn.Embedding(9, 20)
        self.block1, self.block2 = TransformerBlock(20, 4, causal=True), TransformerBlock(20, 2)
        self.norm = LayerNorm(20)
        self.norm.register_parameter("bias", None)
        self.fc = nn.Linear(20, 17)
        self.fc.weight = self.tokens.weight

    def forward(self, x, lengths=None):
        places = torch.arange(x.shape[1])
        behind = None if lengths is None else places >= lengths[:, None]
        x = self.tokens(x.long()) + self.position(places)
        return self.fc(self.norm(self.block2(self.block1(x, behind), behind)))
