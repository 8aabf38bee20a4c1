"""What the tests of `lpsgd report` share: synthetic run folders."""

import json
from unittest import mock

from harness import FolderTest, require

require("matplotlib", "pandas", "yaml")
import style  # noqa: E402
import yaml  # noqa: E402
from view import gather  # noqa: E402

NONE = {"kind": "none"}
FOUR = {
    "kind": "qsgd",
    "bits": 4,
    "norm": "max",
    "levels": "sign_magnitude",
    "bucket": 512,
    "error_feedback": False,
}


class ReportTest(FolderTest):
    formats = ("svg",)  # of a report's figures, which has more: drawing takes most of the time

    def setUp(self):
        super().setUp()
        formats = mock.patch.object(style, "FORMATS", self.formats)
        formats.start()
        self.addCleanup(formats.stop)
        self.addCleanup(lambda: style.plt.close("all"))

    def groups(self, folders, omit=()):
        return gather.groups(gather.read(folders)[0], omit)

    def run_folder(
        self,
        name,
        top1,
        codec=NONE,
        ranks=2,
        seed=1,
        network="net",
        transport="mpi",
        communication=1.0,
        computation=3.0,
        sent=100,
        float32=400,
        study=None,
        perplexity=None,
        speed=None,
        machine=None,
        **exchange,
    ):
        folder = self.root / name
        folder.mkdir(parents=True)
        records = [
            {
                "epoch": e,
                "train_top1": v,
                "val_top1": v,
                "train_loss": 1 / e,
                "samples_per_s": speed or 100.0 * ranks,
                "communication_s": communication,
                "computation_s": computation,
                "bytes_sent": sent,
                "bytes_fp32": float32,
                "replicas_equal": True,
            }
            for e, v in enumerate(top1, start=1)
        ]
        for record, value in zip(records, perplexity or []):
            record["val_perplexity"] = record["train_perplexity"] = value
        (folder / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
        config = {
            "network": {"name": network},
            "train": {"seed": seed, "batch_size": 64},
            "exchange": {
                "transport": transport,
                "collective": "reduce_broadcast",
                "codec": codec,
                "rules": [],
                **exchange,
            },
        }
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
        (folder / "summary.json").write_text(json.dumps({"ranks": ranks}))
        environment = {"git_hash": "abc123", "command": ["lpsgd", "train", name + ".yaml"]}
        if machine:
            environment.update(cpu_info=machine, hosts=[name])
        (folder / "environment.json").write_text(json.dumps(environment))
        if study:
            (folder / "study.json").write_text(json.dumps(study))
        return str(folder)
