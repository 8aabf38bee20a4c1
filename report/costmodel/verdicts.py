"""Whether a codec, or local steps, pay beside an exchange of float32 in every step."""

# Of the ratios of two predicted steps to those of the measured ones, nine tenths are within this factor, or its
# inverse: docs/results/predicted-links, the 31 pairs of none and a codec of which neither cell calibrates.
PAYS = 1.14

YES, UNKNOWN, NO = "pays", "too close to tell", "does not pay"


def verdict(gain):
    """Of a predicted speed-up over none."""
    if gain > PAYS:
        return YES
    return NO if gain < 1 / PAYS else UNKNOWN


def label_of(row):
    """Codec, collective and way to synchronise, as far as they are not the usual ones."""
    collective, sync = row["collective"], row["sync"]
    parts = [row["codec"], *[collective] * (collective != "reduce_broadcast"), *[sync] * (sync != "every_step")]
    return ", ".join(parts)


def lines(rows):
    """One for each row that is compared."""
    found = []
    for k in dict.fromkeys(row["ranks"] for row in rows):
        for row in rows:
            if row["ranks"] == k and row["verdict"]:
                found.append(f"{k} ranks: {label_of(row)} {sentence(row['verdict'], row['speedup_over_none'])}")
    return found


def sentence(said, gain):
    if said == NO:
        return f"{NO}: {100 * (1 / gain - 1):.1f} % slower than none"
    times = f"{gain:.2f} times none's samples per second"
    if said == YES:
        return f"{YES}: {times}"
    return f"is {UNKNOWN}: {times}; nine of ten predictions are within a factor of {PAYS:.2f}"
