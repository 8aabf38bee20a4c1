"""lpsgd import: attention and what stands around it, in the forms in which people write them.

    LPSGD=... DUMP_GRADIENTS=... import_attention_test.py
"""

import unittest

from import_harness import HEAD, ComparedTest

ATTENTION = HEAD + """
class Attention(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.q, self.k, self.v, self.out = (nn.Linear(8, 8) for _ in range(4))

    def heads(self, x):
        return x.view(x.size(0), -1, 2, 4).transpose(1, 2)

    def forward(self, x):
        q, k, v = self.q(x), self.k(x), self.v(x)
        return x + self.out(self.attend(q, k, v).transpose(1, 2).reshape(x.shape))


class Net(nn.Module):
    def __init__(self, attention, kinds):
        super().__init__()
        self.layers = nn.ModuleDict({kind: attention(kind) for kind in kinds})
        self.fc = nn.Linear(8, 5)

    def forward(self, x):
        for one in self.layers.values():
            x = one(x)
        return self.fc(x)
"""

# Queries, and keys, that are scaled before their heads are split; heads that stand in the place of samples.
SCALED = ATTENTION + """
class Scaled(Attention):
    def attend(self, q, k, v):
        n = q.size(1)
        if self.kind == "both":
            q, k = q * 4 ** -0.25, k / 4 ** 0.25
        else:
            q = q * 0.5
        if self.kind == "three":
            v = v * 3.0
        heads = [self.heads(one) for one in (q, k, v)]
        if self.kind == "rows":
            heads = [one.contiguous().view(-1, n, 4) for one in heads]
        p = torch.matmul(heads[0], heads[1].mT).softmax(-1)
        y = torch.matmul(p, heads[2]).view(-1, 2, n, 4)
        return y + self.heads(q) if self.kind == "kept" else y


def make():
    return settle(Net(Scaled, ["queries", "both", "three", "rows", "kept"]))
"""

MASKS = ATTENTION + """
def maybe_add_mask(scores, attn_mask=None):  # as in timm
    return scores if attn_mask is None else scores + attn_mask


torch.fx.wrap("maybe_add_mask")


class Masked(Attention):
    def attend(self, q, k, v):
        n = q.size(1)
        s = self.heads(q) @ self.heads(k).mT / torch.sqrt(torch.tensor(q.size(2) // 2))
        if self.kind == "like":
            s = s.masked_fill(torch.triu(torch.ones_like(s), 1).bool(), torch.tensor(-float("inf")))
        elif self.kind == "new":
            s = s.masked_fill(s.new_ones(n, n).tril() == 0, -1e9)
        elif self.kind == "where":
            s = torch.where(torch.ones(n, n, dtype=torch.bool).triu(1), torch.full((), -1e9), s)
        elif self.kind == "positions":
            i = torch.arange(n).expand_as(q[:, :, 0])
            s = s + (i[:, None, None, :] > i[:, None, :, None]) * -1e9
        elif self.kind == "added":
            s = maybe_add_mask(maybe_add_mask(s), torch.full((n, n), -1e9).triu(1))
        return s.softmax(-1) @ self.heads(v)


def make():
    return settle(Net(Masked, ["like", "new", "where", "positions", "added"]))
"""

# After BERT: positions in a buffer, a mask made of ones, what is checked by exceptions, a softmax made in forward.
BERT = HEAD + """
import math


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.word_embeddings, self.position_embeddings = nn.Embedding(13, 8), nn.Embedding(12, 8)
        self.register_buffer("position_ids", torch.arange(12).expand((1, -1)))
        self.LayerNorm, self.dropout = nn.LayerNorm(8, eps=1e-12), nn.Dropout(0.1)
        self.query, self.key, self.value = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.dense, self.decoder = nn.Linear(8, 8), nn.Linear(8, 13)

    def transpose_for_scores(self, x):
        return x.view(x.size()[:-1] + (2, 4)).permute(0, 2, 1, 3)

    def forward(self, input_ids, attention_mask=None):
        shape = input_ids.size()
        if shape[1] > 12 or shape[1] < 2:
            raise ValueError(f"{shape[1]} tokens")
        if attention_mask is None:
            attention_mask = torch.ones(shape, device=input_ids.device)
        mask = (1.0 - attention_mask[:, None, None, :].to(dtype=torch.float32)) * -10000.0
        x = self.word_embeddings(input_ids) + self.position_embeddings(self.position_ids[:, : shape[1]])
        x = self.dropout(self.LayerNorm(x))
        q = self.transpose_for_scores(self.query(x))
        k, v = self.transpose_for_scores(self.key(x)), self.transpose_for_scores(self.value(x))
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(4) + mask
        if not scores.size(-1) == shape[1]:
            raise ValueError
        context = torch.matmul(nn.Softmax(dim=-1)(scores), v).permute(0, 2, 1, 3).contiguous()
        return self.decoder(x + self.dense(context.view(context.size()[:-2] + (8,))))


def make():
    return settle(Net())
"""

VISION = HEAD + """
class Net(nn.Module):
    def __init__(self, pool, drop, tokens):
        super().__init__()
        self.pool, self.drop = pool, nn.Dropout(drop)
        self.patches, self.tokens = nn.Conv2d(3, 8, 4, 4), nn.Parameter(torch.randn(1, tokens, 8))
        self.positions = nn.Parameter(torch.randn(1, 9, 8))
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), 1)
        self.fc = nn.Linear(8, 5)

    def forward(self, x):
        x = self.patches(x).flatten(2) * 0.5
        batch, width, n = x.size()  # width and n are the same number
        n += 1
        x = self.drop(x.transpose(1, 2).contiguous())
        x = torch.cat([self.tokens[:, :1].repeat(batch, 1, 1), x], dim=1)
        x = self.encoder(x.view(batch, n, width) + self.positions[:, :n])
        if self.pool == "mean":
            return self.fc(x.mean(1))
        return self.fc(x[:, 1:].mean(dim=1) if self.pool == "patches" else x[:, :1].squeeze(1))


def make(pool="token", drop=0.0, tokens=1):
    return settle(Net(pool, drop, tokens))
"""

# Means over height and width in other forms; of images whose channels are last, too.
MEANS = HEAD + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.fc = nn.Conv2d(3, 8, 3, padding=1), nn.LayerNorm(8), nn.Linear(8, 5)

    def forward(self, x):
        x = self.conv(x)
        y = self.norm(x.permute(0, 2, 3, 1))
        x = x.flatten(2).mean(2) + x.mean(axis=(-1, -2))
        return self.fc(x + y.mean((1, 2), keepdim=True).flatten(1))


def make():
    return settle(Net())
"""


EINSUM = ATTENTION + """
class Summed(Attention):
    def attend(self, q, k, v):
        b, n, c = q.shape
        if self.kind == "heads":  # in front
            q, k, v = (self.heads(one) for one in (q, k, v))
            p = torch.einsum("b h i d, b h j d -> b h i j", q, k).mul(0.5).softmax(dim=-1)
            return torch.einsum("bhij,bhjd->bhid", p, v)
        q, k, v = (one.reshape(b, n, 2, 4) for one in (q, k, v))
        if self.kind == "frames":  # in front
            p = torch.einsum("nkhd,nqhd->nhqk", [k, q]).div(2).softmax(dim=3)
            return torch.einsum("nlhd,nhql->nqhd", [v, p]).transpose(1, 2)
        return torch.einsum("bnhd,de->bhne", v, self.out.weight[:4, :4])


def make(kinds=("heads", "frames")):
    return settle(Net(Summed, kinds))
"""


class Attention(ComparedTest):
    def test_scaled_before_heads_are_split(self):
        self.imported(SCALED, "--input", "7,8")
        self.compare_sequences(SCALED)
        lines = self.lines()
        self.assertIn("{attention: layers.both.attention, input: [layers.both.q, layers.both.k, layers.both.v], heads: 2}", lines)
        self.assertEqual([line for line in lines if line.startswith("{scale: ")], [
            "{scale: layers.three.scale_2, factor: 3.0}",
            "{scale: layers.kept.scale, input: layers.kept.q, factor: 0.5}"])

    def test_masks(self):
        self.imported(MASKS, "--input", "7,8")
        self.assertEqual(sum(line.endswith(", heads: 2, causal: true}") for line in self.lines()), 5)
        self.compare_sequences(MASKS)

    def test_einsum(self):
        self.imported(EINSUM, "--input", "7,8")
        self.compare_sequences(EINSUM)
        self.assertEqual(self.refused_lines(EINSUM, "--input", "7,8", "--with", "kinds=['other']"), [
            "einsum in layers.other: einsum('bnhd,de->bhne') is none of attention's products; no layer of lpsgd computes it"])

    def test_bert(self):
        said = self.imported(BERT, "--input", "9", "--tokens")
        self.assertNotIn("left out", said)
        self.assertIn("{position: position_embeddings, frames: 12}", self.lines())
        self.assertIn("{attention: attention, input: [query, key, value], heads: 2}", self.lines())

    def test_vision_transformer(self):
        self.imported(VISION, "--input", "3,8,16")
        self.compare_images(VISION, (3, 8, 16))
        self.imported(VISION, "--input", "3,8,16", "--with", "drop=0.3", out="dropped")
        self.imported(VISION, "--input", "3,8,16", "--with", "pool=mean", out="mean")
        self.assertEqual(self.lines("mean")[-2:], ["{mean_frames: mean_frames}", "{dense: fc, units: 5}"])
        self.assertEqual(self.refused_lines(VISION, "--input", "3,8,16", "--with", "pool=patches"), [
            "mean: a mean over the dimensions 1; lpsgd's are over an image, or over all frames of a sequence"])
        self.assertEqual(self.refused_lines(VISION, "--input", "3,8,16", "--with", "tokens=2"), [
            "cat: joins a tensor that belongs to no layer; lpsgd's are frames in front of a sequence"])

    def test_means_of_images(self):
        self.imported(MEANS, "--input", "3,4,6")
        self.compare_images(MEANS, (3, 4, 6))


if __name__ == "__main__":
    unittest.main()
