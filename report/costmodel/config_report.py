"""lpsgd predict CONFIG: options, rows, table, JSON."""

import json
import math
from dataclasses import replace

import configuration
import program
from configuration import section

from costmodel import (
    codec_choice,
    devices,
    fragments,
    links,
    local_steps,
    measured_here,
    pipeline,
    plan,
    run_folder,
    scaling,
    settings,
    verdicts,
    ways,
)
from costmodel.errors import CostModelError

WEAK = "--weak keeps the measured local batch"


def ranks_of(text):
    """2,4,..,256 doubles; 2,4,8 is a list."""
    words = [word.strip() for word in text.split(",")]
    found = []
    for i, word in enumerate(words):
        if word in ("..", "...") and 0 < i < len(words) - 1 and found and words[i + 1].isdigit():
            while found[-1] * 2 < int(words[i + 1]) <= 1024:
                found.append(found[-1] * 2)
        elif word.isascii() and word.isdigit() and 1 <= int(word) <= 1024:
            found.append(int(word))
        else:
            raise CostModelError(
                f"--ranks: '{text}' is not a list of numbers from 1 to 1024, such as 2,4,8 or 2,4,..,256"
            )
    return list(dict.fromkeys(found))


def computing_of(options, runs, config, ranks):
    if options.frames and (runs or options.step_seconds is not None):
        raise CostModelError("--frames: not together with --run or --step-seconds, of which nothing is measured here")
    if runs and options.step_seconds is not None:
        raise CostModelError("--step-seconds: not together with --run")
    if runs:
        return scaling.from_runs(runs)
    if options.step_seconds is None:
        measured_here.check_frames(options.config, tuple(options.set), config, options.frames)
        if options.weak:
            batches = [run_folder.batch_size(config, 1, options.config)]
        else:
            batches = [int(batch) for batch in local_batches(options.config, config, ranks)[0].values()]
        return measured_here.computing(options.config, options.set, config, batches, options.frames)
    if not (math.isfinite(options.step_seconds) and 0 < options.step_seconds < 1e6):
        raise CostModelError("--step-seconds: not a positive number of seconds")
    batch = options.step_batch or run_folder.batch_size(config, 1, options.config)
    return scaling.from_seconds(options.step_seconds, batch)


def waiting_of(computing, runs, elements, base, run_link, config):
    """Adds how long the ranks of the runs waited for each other."""
    measured = []
    for run in runs:
        if run.ranks == 1 or not devices.travels_alike(run.config, config, run.device):
            continue
        exchange = section(run.config, "exchange")
        emulated = links.emulated(exchange, f"{run.where}/config.yaml")
        link = emulated or run_link or pipeline.NO_LINK
        shown = program.show(f"{run.where}/config.yaml")
        codec = scaling.codec_of(shown)
        own_base = devices.host_of(run.config, run.device, base)
        host, _ = scaling.host_for(codec, runs, elements, own_base, run.adding > 1, run.device)
        overlap = devices.overlaps(run.config, run.device, run.ranks)
        # An emulated link is one of ranks, whichever machine they are on.
        blocks = local_steps.Blocks(run.block, emulated or pipeline.NO_LINK) if run.block else None
        own = None if emulated else pipeline.NO_LINK
        machines = pipeline.Machines(run.adding, own, run.adding > 1)
        packs = plan.pack_bytes(run.config, run.device)
        given = (shown, codec, run.ranks, run.local_batch, computing, link, host, overlap, packs)
        step = local_steps.mean_step(*given, run.exchanges, blocks, fragments.streaming_of(run.config), machines)
        measured.append((run.step, step))
    return scaling.with_waiting(computing, measured)


PARAMETERS = ("parameters", "frozen_parameters")


def same_network(runs, shown):
    """Runs of another network would say nothing, and of other micro-batches something else."""
    for run in runs:
        found = program.show(f"{run.where}/config.yaml")
        parts = [one["micro_batches"] for one in (found, shown)]
        if parts[0] != parts[1]:
            raise CostModelError(f"{run.where}: a run with train.micro_batches {parts[0]}, not {parts[1]}")
        if [found[key] for key in PARAMETERS] != [shown[key] for key in PARAMETERS]:
            raise CostModelError(f"{run.where}: a run of {sized(found)}, not of {sized(shown)}")


def device_of(runs, config):
    """That of the runs, which say nothing of another."""
    if not runs:
        return devices.configured(config)
    named = devices.wanted(config)
    device, source = (named, "as the configuration says") if named else (runs[0].device, f"as {runs[0].where}")
    for run in runs:
        if run.device != device:
            raise CostModelError(f"{run.where}: a run on {run.device}, not on {device} {source}")
    return device


def sized(shown):
    frozen = shown["frozen_parameters"]
    return f"{shown['network']} with {shown['parameters']} parameters" + (f" and {frozen} frozen ones" if frozen else "")


def prediction(options):
    """A dictionary: what was assumed, and a row for each number of ranks, codec and way to synchronise."""
    config, sets = settings.read(options.config, options.set), tuple(options.set)
    configured = program.show(options.config, sets)
    runs = [run_folder.read_enough(folder) for folder in options.run]
    same_network(runs, configured)
    device = device_of(runs, config)
    exchange = section(config, "exchange")
    codecs = [("none", "{kind: none}")]
    if options.codecs:
        codecs += codec_choice.codecs_of(options.codecs)
    elif any(t["codec"] != "none" for t in configured["tensors"]):
        codecs.append((configured_name(configured, exchange), None))
    codecs = list(dict(codecs).items())
    if options.link is None:
        raise CostModelError("--link BANDWIDTH,LATENCY is missing, such as --link 10Gbit,50us")
    link, ranks = links.link_of(options.link), ranks_of(options.ranks or "2,4,8")
    computing = computing_of(options, runs, config, ranks)
    base = pipeline.Host(0.0, 0.0, share=scaling.CODING_SHARE)
    if options.message is not None:
        base = replace(base, message=options.message)
    if options.coding_share is not None:
        base = replace(base, share=options.coding_share)
    run_link = links.link_of(options.run_link, "--run-link") if options.run_link else None
    computing = waiting_of(computing, runs, configured["parameters"], base, run_link, config)
    compared, within = ways.ways_of(options, config), ways.block_link(options)
    base, packs = devices.host_of(config, device, base), plan.pack_bytes(config, device)
    rows, sources = [], {}
    if options.weak:
        batches, skipped = dict.fromkeys(ranks, computing.points[-1][0]), {}
    else:
        batches, skipped = local_batches(options.config, config, ranks)
    for name, codec in codecs:
        shown = program.show(options.config, sets + codec_choice.settings_for(name, codec)) if codec else configured
        text = scaling.codec_of(shown)
        host, sources[name] = scaling.host_for(text, runs, shown["parameters"], base, compared[-1].add, device)
        for k, local in batches.items():
            overlap = devices.overlaps(config, device, k)
            given = (shown, text, k, local, computing, link, host, overlap, packs)
            for way in compared:
                if not way.problem(k):
                    found = (way.exchanges(k, local), way.blocks(k, within), way.streaming, way.machines(within))
                    rows.append((name, way, local_steps.mean_step(*given, *found)))
    left_out = [{"ranks": k, "reason": reason} for k, reason in skipped.items()]
    if not rows:
        raise CostModelError(f"{options.config}: {compared[0].problem(next(iter(batches)))}")
    for k in batches:
        reasons = {}  # each is said once
        for way in compared:
            if reason := way.problem(k):
                reasons.setdefault(reason, way.sync or "every_step")
        left_out += [{"ranks": k, "sync": sync, "reason": reason} for reason, sync in reasons.items()]
    return document(options, configured, computing, device, runs, sources, link, rows, left_out)


def configured_name(shown, exchange):
    """Of the configured codecs: that of the codec if there is one beside none, and no rules."""
    used = {t["codec_options"] for t in shown["tensors"] if t["codec"] != "none"}
    return "configured" if exchange.get("rules") or len(used) != 1 else codec_choice.short(used.pop())


def local_batches(path, config, ranks):
    """({ranks: local batch}, {ranks: why the configuration has none}). CostModelError where it has none at
    all."""
    batches, skipped = {}, {}
    for k in ranks:
        batch = configuration.batch_size(config, k)
        if batch is None:
            skipped[k] = f"train.batch_size gives no positive whole number for {k} ranks"
        elif batch % k:
            skipped[k] = f"train.batch_size {batch} is not a multiple of {k} ranks"
        elif batch // k % configuration.micro_batches(config):
            parts = configuration.micro_batches(config)
            skipped[k] = f"{batch // k} samples of each of {k} ranks are not a multiple of {parts} micro-batches"
        else:
            batches[k] = batch / k
    if not batches:
        reason = skipped[ranks[0]]
        raise CostModelError(f"{path}: {reason}; {WEAK}")
    return batches, skipped


def document(options, shown, computing, device, runs, sources, link, rows, skipped):
    plain = {step.ranks: step for name, way, step in rows if name == "none" and way.is_usual}
    found = []
    for name, way, step in sorted(rows, key=lambda row: row[-1].ranks):
        gain = plain[step.ranks].seconds / step.seconds
        found.append(
            {
                "ranks": step.ranks,
                "codec": name,
                "sync": way.sync or "every_step",
                "collective": way.collective,
                "exchanges_per_step": step.exchanges,
                "local_batch": step.local_batch,
                "step_s": step.seconds,
                "samples_per_s": step.samples_per_s,
                "computation_s": step.computation,
                "coding_s": step.coding,
                "link_busy_s": step.link_busy,
                "exposed_s": step.exposed,
                "waiting_s": step.waiting,
                "messages": step.messages,
                "bytes_per_rank": step.bytes_per_rank,
                "bytes_per_rank_to_other_machines": step.bytes_to_others if way.machine > 1 else None,
                "speedup_over_none": gain,
                "verdict": None if name == "none" and way.is_usual else verdicts.verdict(gain),
            }
        )
    return {
        "config": options.config,
        "network": shown["network"],
        "parameters": shown["parameters"],
        "computing": {
            "source": computing.source,
            "device": device,
            "batches": [p[0] for p in computing.points],
            "runs": [{"run": run.where, "steps": run.steps, "first_step": run.is_cold} for run in runs],
        },
        "coding": sources,
        "link": {"bits_per_s": link.bandwidth, "latency_s": link.latency, "burst_bytes": link.burst},
        "scaling": "weak" if options.weak else "strong",
        "rows": found,
        "skipped": skipped,
        "too_close": {"from": 1 / verdicts.PAYS, "to": verdicts.PAYS},
        "verdicts": verdicts.lines(found),
    }


def megabytes(key):
    return lambda row: f"{row[key] / 1e6:.2f}"


# Heading, width, and the text of a row.
COLUMNS = (
    ("batch", 6, lambda row: f"{row['local_batch']:g}"),
    ("samples/s", 10, lambda row: f"{row['samples_per_s']:.1f}"),
    ("step s", 9, lambda row: f"{row['step_s']:.4f}"),
    ("compute", 9, lambda row: f"{row['computation_s']:.4f}"),
    ("coding", 8, lambda row: f"{row['coding_s']:.4f}"),
    ("link", 8, lambda row: f"{row['link_busy_s']:.4f}"),
    ("exposed", 8, lambda row: f"{row['exposed_s']:.4f}"),
    ("waiting", 8, lambda row: f"{row['waiting_s']:.4f}"),
    ("MB/rank", 8, megabytes("bytes_per_rank")),
    ("gain", 6, lambda row: f"{row['speedup_over_none']:.2f}"),
)


def text(found):
    link, rows = found["link"], found["rows"]
    first = (
        f"{found['network']}, {found['parameters']} parameters; computing from "
        f"{found['computing']['source']}; link "
        f"{link['bits_per_s'] / 1e9:g} Gbit/s, {link['latency_s'] * 1e6:g} us; {found['scaling']} scaling"
    )
    if len(found["computing"]["batches"]) == 1 and found["scaling"] == "strong":
        first += (
            f"; one local batch measured, so {100 * scaling.FIXED_SHARE:.0f} % of forward and backward are "
            f"taken not to shrink with the batch"
        )
    columns = COLUMNS
    if elsewhere := [name for name, source in found["coding"].items() if source == scaling.ON_A_CPU]:
        first += f"; without a GPU here, the coding of {', '.join(elsewhere)} was benchmarked on this machine's CPU"
    if any(row["collective"] == "hierarchical" for row in rows):
        first += "; MB/link: of MB/rank, those that leave a block of ranks"
        columns = (*columns[:-1], ("MB/link", 8, megabytes("bytes_per_rank_to_other_machines")), columns[-1])
    if any(row["sync"] != "every_step" for row in rows):
        first += "; with local steps a step is the mean of the run's, and exch. the exchanges in it"
        columns = (("exch.", 6, lambda row: f"{row['exchanges_per_step']:.3f}"), *columns)
    width = max(34, *(len(verdicts.label_of(row)) for row in rows))
    lines = [first, ""]
    lines.append(" ".join([f"ranks  {'codec':<{width}}", *(f"{name:>{size}}" for name, size, _ in columns)]))
    for row in rows:
        cells = [f"{value(row):>{size}}" for _, size, value in columns]
        lines.append(" ".join([f"{row['ranks']:>5}  {verdicts.label_of(row):<{width}}", *cells]))
    for row in found["skipped"]:
        lines.append(f"{row['ranks']:>5}  left out: {row['reason']}" + ("" if "sync" in row else f"; {WEAK}"))
    return "\n".join([*lines, "", *found["verdicts"]])


def run(options):
    found = prediction(options)
    print(json.dumps(found, indent=1) if options.json else text(found))
