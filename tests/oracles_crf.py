"""The dependency CRF the dumb way: loops over scalars, no torch, nothing of the package.

A problem ``p`` is a dict of nested lists: unary[i][a], words[i], ternary[c][g][a][b], distances, root[c][a][k] or None,
memory[c][m][a] or None, split. Slots of a head: the root, the N words, the M global nodes.
"""

import copy
import itertools
import math

from oracles import logsumexp


def group(p, i, j):
    ring = sum(abs(i - j) >= edge for edge in p["distances"])
    return ring if j > i else ring + len(p["distances"]) + 1


def first(p):
    return 0 if p["root"] is None else 1


def present(p):
    return [i for i in range(len(p["unary"])) if p["words"][i]]


def channels(p):
    return range(len(p["ternary"]))


def labels_of_root(p):
    return 1 if p["root"] is None else len(p["root"][0][0])


def num_slots(p):
    return first(p) + len(p["unary"]) + (0 if p["memory"] is None else len(p["memory"][0]))


def choices(p):
    """Every choice there is to make: channel, word, its slots. With ``split`` a word chooses a head and a node."""
    found = []
    for c in channels(p):
        for i in present(p):
            heads = [0] * first(p) + [first(p) + j for j in present(p) if j != i]
            nodes = []
            if p["memory"] is not None and c < len(p["memory"]):
                nodes = [first(p) + len(p["unary"]) + m for m in range(len(p["memory"][c]))]
            for slots in (heads, nodes) if p["split"] else (heads + nodes,):
                if slots:
                    found.append((c, i, slots))
    return found


def potential(p, c, i, slot, a, labels, root):
    """Score of one chosen slot, word i labelled a."""
    j = slot - first(p)
    if j < 0:
        return p["root"][c][a][root]
    if j < len(p["unary"]):
        return p["ternary"][c][group(p, i, j)][a][labels[j]]
    return p["memory"][c][j - len(p["unary"])][a]


def log_joint(p, labels, chosen, root=0):
    """log φ; ``chosen`` has a slot for each of `choices`, in order."""
    total = sum(p["unary"][i][labels[i]] for i in present(p))
    for (c, i, slots), slot in zip(choices(p), chosen, strict=True):
        total += potential(p, c, i, slot, labels[i], labels, root) if slot in slots else -math.inf
    return total


def agrees(p, z, chosen, labels, observed, heads):
    """True of a state with these labels where observed, and these heads where they are not -1; None is nothing known."""
    same = labels is None or all(z[i] == labels[i] for i in present(p) if observed[i])
    nodes = first(p) + len(p["unary"]) if p["split"] else math.inf
    return same and (
        heads is None
        or all(
            heads[c][i] in (-1, slot)
            for (c, i, slots), slot in zip(choices(p), chosen, strict=True)
            if slots[0] < nodes
        )
    )


def enumerate_all(p, labels=None, observed=None, heads=None):
    """log Z, and exact marginals of labels, heads and root, by every labelling together with every choice of heads.

    Of those alone that agree with what is known.
    """
    known = (labels, observed, heads)
    size, count = len(p["unary"]), len(p["unary"][0])
    every = list(
        itertools.product(
            itertools.product(*(range(count) if word else [0] for word in p["words"])),
            itertools.product(*(slots for _, _, slots in choices(p))),
            range(labels_of_root(p)),
        )
    )
    every = [state for state in every if agrees(p, *state[:2], *known)]
    logs = [log_joint(p, *state) for state in every]
    total = logsumexp(logs)
    labels = [[0.0] * count for _ in range(size)]
    heads = [[[0.0] * num_slots(p) for _ in range(size)] for _ in channels(p)]
    roots = [0.0] * labels_of_root(p)
    for (z, chosen, root), log in zip(every, logs, strict=True):
        weight = math.exp(log - total)
        roots[root] += weight
        for i in present(p):
            labels[i][z[i]] += weight
        for (c, i, _), slot in zip(choices(p), chosen, strict=True):
            heads[c][i][slot] += weight
    return {"log_partition": total, "labels": labels, "heads": heads, "root": roots}


def labellings(p, labels=None, observed=None, heads=None):
    """Labels, the root's label and ``log φ`` with each head summed out by itself, of every labelling that agrees with what is known."""
    nodes = first(p) + len(p["unary"]) if p["split"] else math.inf
    slots = [
        (c, i, [s for s in every if heads is None or every[0] >= nodes or heads[c][i] in (-1, s)])
        for c, i, every in choices(p)
    ]
    for z in itertools.product(*(range(len(p["unary"][0])) if word else [0] for word in p["words"])):
        if not agrees(p, z, [], labels, observed, None):
            continue
        for root in range(labels_of_root(p)):
            log = sum(p["unary"][i][z[i]] for i in present(p))
            log += sum(logsumexp([potential(p, c, i, s, z[i], z, root) for s in own]) for c, i, own in slots)
            yield z, root, log


def kl(p, q):
    """KL(Q || P) of a factorised Q = {labels, heads, root}, by every labelling together with every choice of heads."""
    total, gap = enumerate_all(p)["log_partition"], 0.0
    ranges = [range(len(p["unary"][0])) if word else [0] for word in p["words"]]
    for z in itertools.product(*ranges):
        for chosen in itertools.product(*(slots for _, _, slots in choices(p))):
            for root in range(labels_of_root(p)):
                weight = 1.0 if p["root"] is None else q["root"][root]
                for i in present(p):
                    weight *= q["labels"][i][z[i]]
                for (c, i, _), slot in zip(choices(p), chosen, strict=True):
                    weight *= q["heads"][c][i][slot]
                if weight > 0:
                    gap += weight * (math.log(weight) - log_joint(p, z, chosen, root) + total)
    return gap


def softmax(logits):
    z = logsumexp(logits)
    return [math.exp(x - z) for x in logits]


def positive_parts(logits):
    total = sum(max(x, 0.0) for x in logits)
    return [max(x, 0.0) / total if total else 0.0 for x in logits]


def expected(p, c, i, slot, a, q, root):
    """Score of a slot for word i labelled a, expected over the labels of what is in the slot."""
    j = slot - first(p)
    if j < 0:
        return sum(r * p["root"][c][a][k] for k, r in enumerate(root))
    if j < len(p["unary"]):
        return sum(x * p["ternary"][c][group(p, i, j)][a][b] for b, x in enumerate(q[j]))
    return p["memory"][c][j - len(p["unary"])][a]


def message(p, i, a, q, heads, root):
    """G_i(a): from the slots that i chooses, and from the words that choose i."""
    total = 0.0
    for c, k, slots in choices(p):
        for slot in slots:
            if k == i:
                total += heads[c][i][slot] * expected(p, c, i, slot, a, q, root)
            elif slot == first(p) + i:
                told = sum(x * p["ternary"][c][group(p, k, i)][b][a] for b, x in enumerate(q[k]))
                total += heads[c][k][slot] * told
    return total


def entropy(row):
    return -sum(x * math.log(x) for x in row if x > 0)


def objective(p, state, label_temperature=1.0, head_temperature=1.0):
    q, heads, root = state["labels"], state["heads"], state["root"]
    total = label_temperature * sum(entropy(row) for row in q)
    total += label_temperature * entropy(root) if p["root"] is not None else 0.0
    for i in present(p):
        total += sum(x * p["unary"][i][a] for a, x in enumerate(q[i]))
    for c, i, slots in choices(p):
        total += head_temperature * entropy([heads[c][i][s] for s in slots])
        for slot in slots:
            score = sum(x * expected(p, c, i, slot, a, q, root) for a, x in enumerate(q[i]))
            total += heads[c][i][slot] * score
    return total


def mix(new, old, share):
    return [share * x + (1 - share) * y for x, y in zip(new, old, strict=True)]


def mean_field(
    p, num_steps, schedule, *, label_temperature=1.0, head_temperature=1.0, label_step=1.0, head_step=1.0,
    label_damping=0.0, head_damping=0.0, normalize=softmax,
):  # fmt: skip
    """Labels, heads, root and label logits after every sweep, the start included."""
    count, size = len(p["unary"][0]), len(p["unary"])
    state = {
        "logits": [list(p["unary"][i]) if p["words"][i] else [0.0] * count for i in range(size)],
        "labels": [normalize(p["unary"][i]) if p["words"][i] else [0.0] * count for i in range(size)],
        "head_logits": [[[1.0] * num_slots(p) for _ in range(size)] for _ in channels(p)],
        "heads": [[[0.0] * num_slots(p) for _ in range(size)] for _ in channels(p)],
        "root_logits": [0.0] * labels_of_root(p),
        "root": [1 / labels_of_root(p)] * labels_of_root(p),
    }
    for c, i, slots in choices(p):
        for slot in slots:
            state["heads"][c][i][slot] = 1 / len(slots)
    trace = [state]
    for k in range(num_steps):
        before, share = trace[-1], head_step if k or schedule == "synchronous" else 1.0
        new = copy.deepcopy(before)
        for c, i, slots in choices(p):
            for slot in slots:
                score = sum(
                    x * expected(p, c, i, slot, a, before["labels"], before["root"])
                    for a, x in enumerate(before["labels"][i])
                )
                old = before["head_logits"][c][i][slot]
                new["head_logits"][c][i][slot] = head_damping * old + (1 - head_damping) * score / head_temperature
            found = normalize([new["head_logits"][c][i][s] for s in slots])
            mixed = mix(found, [before["heads"][c][i][s] for s in slots], share)
            for slot, x in zip(slots, mixed, strict=True):
                new["heads"][c][i][slot] = x
        heads = before["heads"] if schedule == "synchronous" else new["heads"]
        told = (
            new["labels"] if schedule == "sequential" else before["labels"]
        )  # the former changes as words are visited
        for i in present(p):
            full = [
                (p["unary"][i][a] + message(p, i, a, told, heads, before["root"])) / label_temperature
                for a in range(count)
            ]
            new["logits"][i] = mix(full, before["logits"][i], 1 - label_damping)
            new["labels"][i] = mix(normalize(new["logits"][i]), before["labels"][i], label_step)
        if p["root"] is not None:
            full = [
                sum(
                    heads[c][i][0] * told[i][a] * p["root"][c][a][k]
                    for c in channels(p) for i in present(p) for a in range(count)
                ) / label_temperature
                for k in range(labels_of_root(p))
            ]  # fmt: skip
            new["root_logits"] = mix(full, before["root_logits"], 1 - label_damping)
            new["root"] = mix(normalize(new["root_logits"]), before["root"], label_step)
        trace.append(new)
    return trace


def log_summed(p, z, heads=None):
    """log φ of labels z with heads, nodes and the root's label summed out, but for the heads that are known."""
    rows = []
    nodes = first(p) + len(p["unary"]) if p["split"] else math.inf
    for root in range(labels_of_root(p)):
        total = sum(p["unary"][i][z[i]] for i in present(p))
        for c, i, slots in choices(p):
            known = heads is not None and heads[c][i] >= 0 and slots[0] < nodes
            taken = [heads[c][i]] if known else slots
            total += logsumexp([potential(p, c, i, slot, z[i], z, root) for slot in taken])
        rows.append(total)
    return logsumexp(rows)


def every_labelling(p):
    """Every labelling, padding 0."""
    return list(itertools.product(*(range(len(p["unary"][0])) if word else [0] for word in p["words"])))


def log_likelihood(p, labels, observed=None, heads=None):
    """log p of the labels that are observed and of the heads that are not -1, by every labelling."""
    read = [i for i in present(p) if observed is None or observed[i]]
    agreeing = [z for z in every_labelling(p) if all(z[i] == labels[i] for i in read)]
    return logsumexp([log_summed(p, z, heads) for z in agreeing]) - logsumexp(
        [log_summed(p, z) for z in every_labelling(p)]
    )


def pseudo_log_likelihood(p, labels, heads=None):
    """Σ_i log p(Z_i | Z_-i) + log p(heads that are not -1 | Z)."""
    z = [label if word else 0 for label, word in zip(labels, p["words"], strict=True)]
    total = log_summed(p, z, heads) - log_summed(p, z)
    for i in present(p):
        others = [[*z[:i], a, *z[i + 1 :]] for a in range(len(p["unary"][0]))]
        total += log_summed(p, z) - logsumexp([log_summed(p, other) for other in others])
    return total
