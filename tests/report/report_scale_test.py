"""Samples per second over one rank's: which run of one rank a curve is divided by, and the study's curves
beside."""

import unittest

import yaml
from report_harness import FOUR, NONE, ReportTest

from view import scale

PLACES = ("network", "ranks", "transport")


class Scale(ReportTest):
    def variant(self, name, speed, ranks, axes=None, codec=NONE, change=None, **options):
        """`change`: of the configuration, {section: {key: value}}."""
        study = {"study": "s", "axes": {**axes, "ranks": ranks}} if axes else None
        folder = self.run_folder(name, [50, 60], codec, ranks=ranks, speed=speed, study=study, **options)
        path = self.root / name / "config.yaml"
        config = yaml.safe_load(path.read_text())
        for section, values in (change or {}).items():
            config[section] = {**config.get(section, {}), **values}
        path.write_text(yaml.safe_dump(config))
        return folder

    def scalability(self, folders):
        """{(label, ranks): scalability} of the runs here."""
        groups = self.groups(folders, PLACES)
        data = scale.scalability(groups, groups, "mpi").data
        data = data[data.of == "here"]
        return {(row.label, row.ranks): row.scalability for row in data.itertuples()}

    def grid(self, axis, variants, change):
        """Each variant trains on one rank at its own speed, and is twice as fast on two."""
        folders = []
        for i, value in enumerate(variants):
            for ranks in (1, 2):
                speed = 100.0 * (i + 1) * ranks
                name = f"{axis}-{value}-{ranks}"
                axes = {"codec": "none", axis: value}
                folders.append(self.variant(name, speed, ranks, axes, change=change(value)))
        return folders

    def test_each_variant_is_divided_by_its_own_rate(self):
        for axis, variants, change in (
            ("network.parameters.width", (32, 64), lambda v: {"network": {"parameters": {"width": v}}}),
            ("train.compute", ("fp32", "bf16"), lambda v: {"train": {"compute": v}}),
            ("train.batch_size", (32, 64), lambda v: {"train": {"batch_size": v}}),
            ("train.threads", (1, 2), lambda v: {"train": {"threads": v}}),
        ):
            with self.subTest(axis):
                found = self.scalability(self.grid(axis, variants, change))
                self.assertEqual(len(found), 4)
                for (_, ranks), value in found.items():
                    self.assertEqual(value, ranks)

    def test_a_run_that_was_stopped_is_no_base_where_there_is_a_finished_one(self):
        stopped = self.variant("stopped", 999.0, 1, change={"train": {"epochs": 2, "seed": 2}})
        path = self.root / "stopped" / "metrics.jsonl"
        path.write_text(path.read_text().splitlines(keepends=True)[0])
        finished = self.variant("finished", 50.0, 1, change={"train": {"epochs": 2}})
        two = self.variant("two", 90.0, 2, change={"train": {"epochs": 2}})
        self.assertEqual(self.scalability([stopped, finished, two])["none", 2], 1.8)

    def test_copies_of_another_machine_have_its_base(self):
        folders = [self.variant(f"{m}{k}", speed * k, k) for m, speed in (("a", 100.0), ("b", 10.0)) for k in (1, 2)]
        groups = self.groups(folders, PLACES)
        data = scale.scalability(groups, groups, "mpi").data
        self.assertEqual(data[data.ranks == 2]["scalability"].tolist(), [2.0, 2.0])
        groups = self.groups([*folders[:2], folders[3]], PLACES)
        data = scale.scalability(groups, groups, "mpi").data
        self.assertEqual(data[data.ranks == 2]["scalability"].tolist(), [2.0])

    def test_a_run_of_one_rank_on_another_machine_is_no_base(self):
        slow_one = self.variant("slow-1", 10.0, 1, machine="slow")
        fast_two = self.variant("fast-2", 200.0, 2, machine="fast")
        groups = self.groups([slow_one, fast_two], PLACES)
        self.assertIsNone(scale.scalability(groups, groups, "mpi"))
        fast_one = self.variant("fast-1", 100.0, 1, machine="fast")  # a second copy of one rank's
        self.assertEqual(self.scalability([slow_one, fast_two, fast_one])["none", 2], 2.0)

    def test_a_batch_for_each_number_of_ranks_has_one_base(self):
        """As the study's recipes: a global batch that grows with the ranks."""
        folders = [
            self.variant(f"k{k}", 100.0 * k, k, change={"train": {"batch_size": 32 * k}}) for k in (1, 2, 4)
        ]
        self.assertEqual(sorted(self.scalability(folders).values()), [1, 2, 4])

    def test_what_the_exchange_does_has_no_base_of_its_own(self):
        link = {"bandwidth": "1Gbit", "latency": "50us"}
        folders = [
            self.variant("four", 80.0, 1, codec=FOUR),
            self.variant("one", 100.0, 1),
            self.variant("a", 150.0, 2, codec=FOUR, link=link, min_elements=0),
            self.variant("b", 120.0, 2, collective="allreduce", overlap=False),
        ]
        found = {ranks: [] for ranks in (1, 2)}
        for (_, ranks), value in self.scalability(folders).items():
            found[ranks].append(value)
        self.assertEqual(found, {1: [0.8, 1.0], 2: [1.5, 1.2]})

    def test_ticks_say_what_slows_down(self):
        folders = [self.variant("one", 100.0, 1), self.variant("two", 40.0, 2)]
        groups = self.groups(folders, PLACES)
        axis = scale.scalability(groups, groups, "mpi").figure.axes[0].yaxis
        shown = [axis.get_major_formatter()(tick) for tick in (0.25, 0.5, 1, 2)]
        self.assertEqual(shown, ["0.25", "0.5", "1", "2"])

    def test_a_variant_without_a_run_of_one_rank_is_left_out(self):
        folders = self.grid("train.compute", ("fp32", "bf16"), lambda v: {"train": {"compute": v}})
        self.assertEqual(
            {label for label, _ in self.scalability(folders[:2] + folders[3:])}, {"compute fp32"}
        )

    def test_the_studys_curves_are_those_of_the_codecs_here(self):
        def labels(*codecs):
            folders = [self.variant(f"{len(codecs)}-one", 100.0, 1, network="alexnet")]
            for i, codec in enumerate(codecs):
                name = f"{len(codecs)}-{i}"
                folders.append(self.variant(name, 300.0, 4, codec=codec, network="alexnet"))
            groups = self.groups(folders, PLACES)
            item = scale.scalability(groups, groups, "mpi")
            theirs = item.data[item.data.of != "here"]
            self.assertLessEqual(max(theirs.ranks), 4)
            return list(dict.fromkeys(theirs.label)), item

        two = {**FOUR, "bits": 2, "bucket": 128}
        onebit = {"kind": "onebit", "bucket": 64, "error_feedback": True}
        found, item = labels(two, onebit, FOUR)
        names = ["study, 32 bit", "study, QSGD 2 bit", "study, QSGD 4 bit", "study, 1bitSGD* 64"]
        self.assertEqual(sorted(found), sorted(names))
        value = item.data[(item.data.label == names[2]) & (item.data.ranks == 1)].scalability
        self.assertEqual(value.tolist(), [1.0])
        markers = [line.get_marker() for line in item.figure.axes[0].lines if line.get_color() == "0.45"]
        self.assertEqual((len(markers), len(set(markers))), (4, 4))
        self.assertEqual(labels(NONE)[0], ["study, 32 bit", "study, QSGD 8 bit"])


if __name__ == "__main__":
    unittest.main()
