"""lpsgd predict CONFIG: options, rows, table, JSON."""

import json
import math
import re
from dataclasses import replace

import configuration
import files
import program
from configuration import section

from costmodel import links, pipeline, plan, run_folder, scaling
from costmodel.errors import CostModelError
from costmodel.networks import CODECS

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


def codecs_of(text):
    """Names of codecs, or codecs as in the configuration: none,qsgd4,'{kind: topk, density: 0.01}'."""
    found = []
    for word in re.findall(r"\{[^{}]*\}|[^,{}]+", text):
        word = word.strip()
        if word in CODECS:
            found.append((word, CODECS[word].config))
        elif word.startswith("{"):
            found.append((word, word))
        elif word:
            raise CostModelError(
                f"--codecs: unknown codec '{word}'; expected {', '.join(CODECS)}, or a codec as in the "
                f"configuration"
            )
    return found


def short(codec):
    """qsgd4 or, for what has no name, its options less the usual ones."""
    options = codec.strip("{}").split(", ")
    usual = {"norm: max", "levels: sign_magnitude", "type: dynamic_tree"}
    usual.add(f"error_feedback: {'false' if options[0] in ('kind: qsgd', 'kind: dynamic8') else 'true'}")
    text = "{" + ", ".join(option for option in options if option not in usual) + "}"
    return next((name for name, known in CODECS.items() if known.config == text), text)


def settings_for(name, codec):
    """--set values that give the whole network this codec; nothing for the configured one."""
    if codec is None:
        return ()
    more = ("exchange.min_elements=0",) if name in CODECS and CODECS[name].all_tensors else ()
    return (f"exchange.codec={codec}", "exchange.rules=[]", *more)


def computing_of(options, runs, config):
    if runs and options.step_seconds is not None:
        raise CostModelError("--step-seconds: not together with --run")
    if runs:
        return scaling.from_runs(runs)
    if options.step_seconds is None:
        raise CostModelError(
            "predict needs the seconds of computing: --run RUN, the folder of a run of a whole epoch (a "
            "short one: lpsgd train "
            f"{options.config} --out RUN --set data.train_samples=N --set train.epochs=2), or "
            f"--step-seconds S [--step-batch N]"
        )
    if not (math.isfinite(options.step_seconds) and 0 < options.step_seconds < 1e6):
        raise CostModelError("--step-seconds: not a positive number of seconds")
    batch = options.step_batch or run_folder.batch_size(config, 1, options.config)
    return scaling.from_seconds(options.step_seconds, batch)


def waiting_of(computing, runs, elements, base, run_link):
    """Adds how long the ranks of the runs waited for each other."""
    measured = []
    for run in runs:
        if run.ranks == 1:
            continue
        exchange = section(run.config, "exchange")
        link = links.emulated(exchange, f"{run.where}/config.yaml") or run_link or scaling.NO_LINK
        shown = program.show(f"{run.where}/config.yaml")
        codec = scaling.codec_of(shown)
        host, _ = scaling.host_for(codec, runs, elements, base)
        overlap = exchange.get("overlap", True)
        packs = plan.pack_bytes(run.config)
        step = scaling.predict(
            shown, codec, run.ranks, run.local_batch, computing, link, host, overlap, packs
        )
        measured.append((run.step, step))
    return scaling.with_waiting(computing, measured)


def same_network(runs, shown):
    """Runs of another network would say nothing."""
    for run in runs:
        found = program.show(f"{run.where}/config.yaml")
        if found["parameters"] != shown["parameters"]:
            raise CostModelError(
                f"{run.where}: a run of {found['network']} with {found['parameters']} parameters, not of "
                f"{shown['network']} with {shown['parameters']}"
            )


def prediction(options):
    """A dictionary: what was assumed, and a row for each number of ranks and codec."""
    config = files.read_yaml(options.config)
    configured = program.show(options.config)
    runs = [run_folder.read(folder) for folder in options.run]
    same_network(runs, configured)
    computing = computing_of(options, runs, config)
    exchange = section(config, "exchange")
    codecs = [("none", "{kind: none}")]
    if options.codecs:
        codecs += codecs_of(options.codecs)
    elif any(t["codec"] != "none" for t in configured["tensors"]):
        codecs.append((short(scaling.codec_of(configured)), None))
    codecs = list(dict(codecs).items())
    if options.link is None:
        raise CostModelError("--link BANDWIDTH,LATENCY is missing, such as --link 10Gbit,50us")
    link, ranks = links.link_of(options.link), ranks_of(options.ranks or "2,4,8")
    base = pipeline.Host(0.0, 0.0, share=scaling.CODING_SHARE)
    if options.message is not None:
        base = replace(base, message=options.message)
    if options.coding_share is not None:
        base = replace(base, share=options.coding_share)
    run_link = links.link_of(options.run_link, "--run-link") if options.run_link else None
    computing = waiting_of(computing, runs, configured["parameters"], base, run_link)
    rows, sources = [], {}
    if options.weak:
        batches, skipped = dict.fromkeys(ranks, computing.points[-1][0]), {}
    else:
        batches, skipped = local_batches(options.config, config, ranks)
    for name, codec in codecs:
        shown = program.show(options.config, settings_for(name, codec)) if codec else configured
        text = scaling.codec_of(shown)
        host, sources[name] = scaling.host_for(text, runs, shown["parameters"], base)
        for k, local in batches.items():
            step = scaling.predict(
                shown,
                text,
                k,
                local,
                computing,
                link,
                host,
                exchange.get("overlap", True),
                plan.pack_bytes(config),
            )
            rows.append((name, step))
    return document(options, configured, computing, sources, link, rows, skipped)


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
        else:
            batches[k] = batch / k
    if not batches:
        reason = skipped[ranks[0]]
        raise CostModelError(f"{path}: {reason}; {WEAK}")
    return batches, skipped


def document(options, shown, computing, sources, link, rows, skipped):
    plain = {step.ranks: step for name, step in rows if name == "none"}
    found = []
    for name, step in sorted(rows, key=lambda row: row[1].ranks):
        gain = plain[step.ranks].seconds / step.seconds
        found.append(
            {
                "ranks": step.ranks,
                "codec": name,
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
                "speedup_over_none": gain,
            }
        )
    return {
        "config": options.config,
        "network": shown["network"],
        "parameters": shown["parameters"],
        "computing": {"source": computing.source, "batches": [p[0] for p in computing.points]},
        "coding": sources,
        "link": {"bits_per_s": link.bandwidth, "latency_s": link.latency, "burst_bytes": link.burst},
        "scaling": "weak" if options.weak else "strong",
        "rows": found,
        "skipped": [{"ranks": k, "reason": reason} for k, reason in skipped.items()],
        "verdicts": verdicts(found),
    }


def verdicts(rows):
    lines = []
    for k in dict.fromkeys(row["ranks"] for row in rows):
        for row in rows:
            if row["ranks"] != k or row["codec"] == "none":
                continue
            gain = row["speedup_over_none"]
            if gain >= 1.005:
                lines.append(f"{k} ranks: {row['codec']} pays: {gain:.2f} times none's samples per second")
            else:
                loss = f"{100 * (1 / gain - 1):.1f} % slower than none" if gain < 0.995 else "as fast as none"
                lines.append(f"{k} ranks: {row['codec']} does not pay: {loss}")
    return lines


def text(found):
    link = found["link"]
    lines = [
        f"{found['network']}, {found['parameters']} parameters; computing from "
        f"{found['computing']['source']}; link "
        f"{link['bits_per_s'] / 1e9:g} Gbit/s, {link['latency_s'] * 1e6:g} us; {found['scaling']} scaling",
        "",
    ]
    if len(found["computing"]["batches"]) == 1 and found["scaling"] == "strong":
        lines[0] += (
            f"; one local batch measured, so {100 * scaling.FIXED_SHARE:.0f} % of forward and backward are "
            f"taken "
            "not to shrink with the batch"
        )
    lines.append(
        f"{'ranks':>5}  {'codec':<34} {'batch':>6} {'samples/s':>10} {'step s':>9} {'compute':>9} "
        f"{'coding':>8} "
        f"{'link':>8} {'exposed':>8} {'waiting':>8} {'MB/rank':>8} {'gain':>6}"
    )
    for row in found["rows"]:
        lines.append(
            f"{row['ranks']:>5}  {row['codec']:<34} {row['local_batch']:>6g} {row['samples_per_s']:>10.1f} "
            f"{row['step_s']:>9.4f} {row['computation_s']:>9.4f} {row['coding_s']:>8.4f} "
            f"{row['link_busy_s']:>8.4f} "
            f"{row['exposed_s']:>8.4f} {row['waiting_s']:>8.4f} {row['bytes_per_rank'] / 1e6:>8.2f} "
            f"{row['speedup_over_none']:>6.2f}"
        )
    lines += [f"{row['ranks']:>5}  left out: {row['reason']}; {WEAK}" for row in found["skipped"]]
    return "\n".join([*lines, "", *found["verdicts"]])


def run(options):
    found = prediction(options)
    print(json.dumps(found, indent=1) if options.json else text(found))
