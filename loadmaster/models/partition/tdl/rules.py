"""Rules of families of operators: what they do with the dimensions of their tensors, in letters (:mod:`.formula`).

A rule says what can be split, not that it may be: every strategy that follows is tried on the operator itself before it
is used.
"""

from __future__ import annotations

from collections.abc import Callable

from loadmaster.models.partition.tdl.calls import Shape, TdlCall, broadcast, free, whole
from loadmaster.models.partition.tdl.formula import Formula

Rule = Callable[[TdlCall], Formula | None]

# Whole dimensions that a kernel takes row by row are tried with so many elements.
_SHORT = 8
# Rows that kernels of attention take together.
_TILE = 32


def pointwise(call: TdlCall) -> Formula | None:
    """Functions of single elements, inputs broadcast."""
    shape = call.results[0]
    letters = free(len(shape))
    if any(result != shape for result in call.results):
        return None
    return Formula(tuple(broadcast(letters, s, shape) for _, s in call.inputs), (letters,) * len(call.results))


def fixed(*inputs: str, to: str) -> Rule:
    """Tensors that always have these letters, as many of the inputs as there are."""

    def rule(call: TdlCall) -> Formula:
        return Formula(inputs[: len(call.inputs)], tuple(to.split(",")))

    return rule


def filled(call: TdlCall) -> Formula:
    """A tensor of a shape that the kernel is told; what it is like does not matter."""
    letters = free(len(call.results[0]))
    like = tuple("KLMNOPQRST"[: len(shape)] for _, shape in call.inputs)
    return Formula(like, (letters,), told={"size": letters})


def _reduction(call: TdlCall, *, adds: bool) -> Formula:
    rank = len(call.first)
    dims = call.dims("dim", rank)
    letters = free(rank) if adds else whole(free(rank), dims)
    kept = "".join(c if d not in dims else "1" if len(call.results[0]) == rank else "" for d, c in enumerate(letters))
    return Formula((letters,), (kept,) * len(call.results))


def summed(call: TdlCall) -> Formula:
    """A sum over some dimensions: sums of shares are terms of it."""
    return _reduction(call, adds=True)


def reduced(call: TdlCall) -> Formula:
    """Reductions other than sums, over dimensions that are needed whole."""
    return _reduction(call, adds=False)


def along(call: TdlCall) -> Formula:
    """Functions of rows along some dimensions, which all tensors of that rank have whole: softmax, sorting."""
    rank = len(call.first)
    dims = call.dims("dim" if "dim" in call.arguments else "dims", rank)
    letters = whole(free(rank), dims)
    extents = {shape[d] for _, shape in call.inputs for d in dims if len(shape) == rank}
    extents |= {shape[d] for shape in call.results for d in dims}
    small = {letters[d]: min(_SHORT, call.first[d]) for d in dims} if len(extents) == 1 else {}
    return Formula((letters,) * len(call.inputs), (letters,) * len(call.results), small=small)


def changed_along(call: TdlCall) -> Formula:
    """Functions of rows whose extents differ between tensors: gather, scatter, top k, concatenation, slices."""
    rank = len(call.results[0])
    dims = call.dims("dim" if "dim" in call.arguments else "dims", rank)
    letters = free(rank)
    sizes: dict[int, dict[int, str]] = {d: {} for d in dims}

    def of(shape: Shape) -> str:
        found = list(letters)
        for d in dims:
            names = sizes[d]
            found[d] = names.setdefault(shape[d], chr(ord("A") + 5 * d + len(names)))
        return "".join(found)

    inputs, results = tuple(of(shape) for _, shape in call.inputs), tuple(map(of, call.results))
    return Formula(inputs, results, told={"input_sizes": results[0]} if "input_sizes" in call.arguments else {})


def stacked(call: TdlCall) -> Formula:
    """Tensors stacked along a new dimension."""
    rank = len(call.results[0])
    (dim,) = call.dims("dim", rank)
    letters = whole(free(rank), (dim,))
    return Formula((letters[:dim] + letters[dim + 1 :],) * len(call.inputs), (letters,))


def select_backward(call: TdlCall) -> Formula:
    """The gradient of one element of a dimension, in its place."""
    rank = len(call.results[0])
    (dim,) = call.dims("dim", rank)
    letters = whole(free(rank), (dim,))
    return Formula((letters[:dim] + letters[dim + 1 :],), (letters,), told={"input_sizes": letters})


def padded(call: TdlCall) -> Formula:
    """Padding of the last dimensions, which grow."""
    rank, count = len(call.first), len(call.arguments["pad"]) // 2
    kept = free(rank - count)
    upper = "".join(chr(ord("A") + 2 * n) for n in range(count))
    return Formula((kept + upper,), (kept + "".join(chr(ord(c) + 1) for c in upper),))


def looked_up(call: TdlCall) -> Formula:
    """Rows of a table by number."""
    letters = free(len(call.shape("indices")))
    return Formula(("Vz", letters), (letters + "z",), small={"V": _SHORT})


def looked_up_backward(call: TdlCall) -> Formula:
    """Gradients of a table: those of each row, summed."""
    letters = free(len(call.shape("indices")))
    return Formula((letters + "z", letters), ("Vz",), told={"num_weights": "V"}, small={"V": _SHORT})


def normalized(call: TdlCall) -> Formula:
    """Layer and RMS norms: the last dimensions of every row; mean and deviation have one element there."""
    rank, count = len(call.first), len(call.arguments["normalized_shape"])
    kept, over = free(rank - count), "HIJ"[:count]
    one = kept + "1" * count
    by_name = {"input": kept + over, "weight": over, "bias": over, "grad_out": kept + over, "mean": one, "rstd": one}
    shapes = {s: kept + over if len(s) == rank and s == call.first else over for s in call.results}
    shapes |= {s: one for s in call.results if len(s) == rank and s != call.first}
    if "grad_out" in call.arguments:
        shapes = {s: kept + over if len(s) == rank else over for s in call.results}
    return Formula(
        tuple(by_name[name] for name, _ in call.inputs),
        tuple(shapes[s] for s in call.results),
        told={"normalized_shape": over},
        small=dict.fromkeys(over, _SHORT),
    )


def group_normalized(call: TdlCall) -> Formula:
    """Group norms: groups of channels of each sample by themselves."""
    space = "XYZ"[: len(call.first) - 2]
    image, groups = "aC" + space, "aG"
    by_name = {"input": image, "grad_out": image, "weight": "C", "bias": "C", "mean": groups, "rstd": groups}
    results: tuple[str, ...] = (image, groups, groups)
    if "grad_out" in call.arguments:
        results = _asked((image, "C", "C"), call)
    return Formula(
        tuple(by_name[name] for name, _ in call.inputs), results, told={"N": "a"}, products={"HxW": space or "1"}
    )


def batch_normalized(call: TdlCall) -> Formula:
    """Batch norms: each channel by itself, as a share of the batch has other statistics."""
    image = "Bc" + "XYZ"[: len(call.first) - 2]
    inputs = tuple(image if len(shape) > 1 else "c" for _, shape in call.inputs)
    results = tuple(image if len(shape) > 1 else "c" for shape in call.results)
    return Formula(inputs, results, small={"B": 4})


def windowed(call: TdlCall) -> Formula:
    """Pooling and resampling: samples and channels by themselves, space whole. Both passes."""
    names: dict[tuple[int, int], str] = {}

    def of(shape: Shape) -> str:
        kept = 2 if len(shape) - spatial >= 2 else len(shape) - spatial
        upper = [names.setdefault((d, e), chr(ord("A") + len(names))) for d, e in enumerate(shape[kept:])]
        return "ab"[:kept] + "".join(upper)

    spatial = 3 if "3d" in call.name else 1 if "1d" in call.name else 2
    inputs, results = tuple(of(shape) for _, shape in call.inputs), tuple(map(of, call.results))
    told = {"input_size": results[0]} if "input_size" in call.arguments else {}
    return Formula(inputs, results, told=told)


def convolved(call: TdlCall) -> Formula:
    """Convolutions of data [n, i, ...] with filters [o, i, ...], if transposed [i, o, ...]; by samples with groups."""
    space = len(call.first) - 2
    wide, short, made = "XYZ"[:space], "KLM"[:space], "PQR"[:space]
    i, o = ("i", "o") if call.arguments["groups"] == 1 else ("I", "O")
    inner = i if i == "i" else "J"
    if call.arguments.get("bias"):
        i = inner = inner.upper()  # each share of a sum would add the shift
    filters = (inner + o if call.arguments["transposed"] else o + inner) + short
    if call.arguments["transposed"] and i == "I":
        filters = "IJ" + short
    inputs = ("n" + i + wide, filters, o)
    return Formula(inputs[: len(call.inputs)], ("n" + o + made,))


def convolved_backward(call: TdlCall) -> Formula:
    """Gradients of a convolution from gradient [n, o, ...], data and filters: those that are asked for."""
    space = len(call.first) - 2
    wide, short, made = "XYZ"[:space], "KLM"[:space], "PQR"[:space]
    i, o, inner = ("i", "o", "i") if call.arguments["groups"] == 1 else ("I", "O", "J")
    filters = (inner + o if call.arguments["transposed"] else o + inner) + short
    if call.arguments["transposed"] and i == "I":
        filters = "IJ" + short
    every = ("n" + i + wide, filters, o)
    return Formula(("n" + o + made, "n" + i + wide, filters), _asked(every, call))


def _asked(results: tuple[str, ...], call: TdlCall) -> tuple[str, ...]:
    return tuple(of for of, wanted in zip(results, call.arguments["output_mask"], strict=True) if wanted)


def log_likelihood(call: TdlCall) -> Formula:
    """Rows of log-probabilities and classes -> a sum, and the sum of their weights."""
    rows = _rows(call.shape("self"))
    by_name = {"self": rows, "target": rows.replace("C", ""), "weight": "C"}
    per_row = call.arguments.get("reduction") == 0
    return Formula(tuple(by_name[name] for name, _ in call.inputs), (by_name["target"] if per_row else "", ""))


def log_likelihood_backward(call: TdlCall) -> Formula:
    """The gradient of rows; the weights' sum is that of all rows."""
    rows = _rows(call.shape("self"))
    classes = rows.replace("C", "")
    given = classes if call.arguments.get("reduction") == 0 else ""
    by_name = {"grad_output": given, "self": rows, "target": classes, "weight": "C", "total_weight": ""}
    return Formula(tuple(by_name[name] for name, _ in call.inputs), (rows,))


def _rows(shape: Shape) -> str:
    return free(1) + "C" + free(len(shape))[1:-1] if len(shape) > 1 else "C"


def attention(call: TdlCall) -> Formula:
    """Attention, heads by themselves. Keys are needed whole, and rows of queries too: masks count them."""
    queries, keys = call.shape("query"), call.shape("key")
    heads = "b" if queries[1] == keys[1] else "B"  # grouped heads have two numbers
    other = "b" if heads == "b" else "H"
    q, k, v = f"a{heads}SD", f"a{other}TD", f"a{other}TE"
    sums = next((s for name, s in call.inputs if name == "logsumexp"), None) or call.results[1]
    # Of efficient attention they are padded, cuDNN's have one dimension more.
    out, rows = f"a{heads}SE", f"a{heads}L" + "1" * (len(sums) - 3)
    mask = next((shape for name, shape in call.inputs if name in ("attn_mask", "attn_bias")), None)
    bias = "" if mask is None else broadcast(f"a{heads}ST", mask, (*queries[:2], queries[2], keys[2]))
    by_name = {"query": q, "key": k, "value": v, "out": out, "logsumexp": rows, "attn_mask": bias, "attn_bias": bias}
    by_name |= {"grad_out": out, "grad_out_": out}
    inputs = tuple(by_name.get(name, free(len(shape)).upper()) for name, shape in call.inputs)
    if "backward" in call.name:
        results: tuple[str, ...] = (q, k, v, bias)[: len(call.results)]
    else:
        others = iter("UVWXYZ")
        results = (out, rows, *("".join(next(others) for _ in shape) for shape in call.results[2:]))
    on_cpu = call.name.removesuffix("_backward").endswith("for_cpu")
    count = min(_SHORT if on_cpu else _TILE, queries[2])
    alike = queries[2] == keys[2] and sums[2] == -(-queries[2] // count) * count
    return Formula(
        inputs,
        results,
        small=dict.fromkeys("STL", count) if alike else {},
        compared=None if "backward" in call.name else 2,
        own_formats=not on_cpu,
    )


def leading(kept: int) -> Rule:
    """Rule that takes the first ``kept`` dimensions by themselves, the rest whole; -2: all but the last two."""

    def rule(call: TdlCall) -> Formula:
        count = kept if kept > 0 else len(call.first) + kept
        names: dict[tuple[int, int], str] = {}

        def of(shape: Shape) -> str:
            rest = [names.setdefault((d, e), chr(ord("A") + len(names))) for d, e in enumerate(shape[count:])]
            return free(count)[: len(shape)] + "".join(rest)

        return Formula(tuple(of(shape) for _, shape in call.inputs), tuple(map(of, call.results)))

    return rule


def selected(call: TdlCall) -> Formula:
    """Selection of places of one dimension by number: what is read there, or written."""
    shape = call.shape("self")
    (dim,) = call.dims("dim", len(shape))
    letters = whole(free(len(shape)), (dim,))
    rows = letters[:dim] + "Z" + letters[dim + 1 :]
    by_name = {"self": letters, "index": "Z", "source": rows, "value": ""}
    written = call.name != "index_select"
    inputs = tuple(by_name[name] for name, _ in call.inputs)
    return Formula(inputs, (letters if written else rows,), small={letters[dim]: _SHORT})


def sought(call: TdlCall) -> Formula:
    """Search for every element by itself, in a table."""
    letters = free(len(call.results[0]))
    names = {"self": letters, "elements": letters, "boundaries": "Z", "test_elements": "WXYZ"}
    return Formula(tuple(names[name][: len(shape)] for name, shape in call.inputs), (letters,))


def by_index(call: TdlCall) -> Formula | None:
    """Dimensions side by side looked up by tensors of numbers, the others as they are."""
    places = [n for n, given in enumerate(call.arguments["indices"]) if given]
    if places != [*range(places[0], places[-1] + 1)]:
        return None
    shapes = [shape for name, shape in call.inputs if name == "indices"]
    rank = max(map(len, shapes))
    of = tuple(max((s[d - rank] for s in shapes if len(s) >= rank - d), default=1) for d in range(rank))
    numbers = "STUVW"[:rank]
    letters = whole(free(len(call.shape("self"))), tuple(places))
    rows = letters[: places[0]] + numbers + letters[places[-1] + 1 :]
    by_name = {"self": letters, "values": rows}
    inputs = tuple(by_name.get(name) or broadcast(numbers, shape, of) for name, shape in call.inputs)
    small = {letters[d]: _SHORT for d in places}
    return Formula(inputs, (letters if "put" in call.name else rows,), small=small)


def repeated(call: TdlCall) -> Formula | None:
    """Repetition of some dimensions; the others can be split."""
    repeats, rank = call.arguments["repeats"], len(call.first)
    if len(repeats) != rank:
        return None
    dims = tuple(d for d, count in enumerate(repeats) if count != 1)
    letters = whole(free(rank), dims)
    return Formula((letters,), ("".join(chr(ord(c) + 10) if c.isupper() else c for c in letters),))
