"""Register tiles: the innermost loops of matrix products and attention, written in LLVM's vectors.

Numba's loops leave to LLVM how a reduction is laid out in registers. A tile here lays it out
itself: lanes are output rows, so nothing is summed across lanes, a weight is read and unpacked
once for all tokens of the tile, and the order of additions for one token does not depend on how
many other tokens are in the tile. So a batch equals its tokens one by one, bit for bit.

All arguments are addresses (int64), strides and counts. Nothing is checked; pack.py makes
the layouts, which docs/engine.md draws. On x86 with AVX2 the integer products are single
instructions, elsewhere the same sums in portable vector code, with the same result.
"""

import os
from functools import reduce

import llvmlite.binding as llvm
from llvmlite import ir
from numba import config, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

I8, I16, I32, I64 = (ir.IntType(n) for n in (8, 16, 32, 64))
F16, F32 = ir.HalfType(), ir.FloatType()


def vector(kind, n):
    return ir.VectorType(kind, n)


V8F, V8I = vector(F32, 8), vector(I32, 8)
V8S, V16S, V32B = vector(I16, 8), vector(I16, 16), vector(I8, 32)


def cpu_has(feature):
    """Whether kernels are compiled for a CPU with that feature, as Numba decides it."""
    if config.CPU_NAME or config.CPU_FEATURES:
        return f"+{feature}" in (config.CPU_FEATURES or "")
    return bool(llvm.get_host_cpu_features().get(feature))


HAS_AVX2 = cpu_has("avx2")
HAS_VNNI = cpu_has("avx512vnni") and cpu_has("avx512vl")
# Two neighbouring tiles at once, in registers twice as wide.
HAS_PAIRS = HAS_VNNI and cpu_has("avx512bw")
HAS_FMA = cpu_has("fma") or not llvm.get_default_triple().startswith(("x86", "i686"))
HAS_HALF = cpu_has("f16c") or not llvm.get_default_triple().startswith(("x86", "i686"))
ON_X86 = llvm.get_default_triple().startswith(("x86", "i686"))
# Tokens there: most sizes of a draft's pass, since unpacking costs as much as two tokens.
PAIR_SIZES = (12, 9, 8, 6, 5, 4, 3, 2, 1)
# Bytes from a block to the one that is asked of memory meanwhile. The CPU itself does not look
# past a page's end, and without this a batch's products and its reading happen in turn.
AHEAD = 4096


# --------------------------------------------------------------------------------------------------
# Vector expressions


def splat(builder, scalar, n):
    one = builder.insert_element(
        ir.Constant(vector(scalar.type, n), ir.Undefined), scalar, ir.Constant(I32, 0)
    )
    return builder.shuffle_vector(
        one, ir.Constant(one.type, ir.Undefined), ir.Constant(vector(I32, n), [0] * n)
    )


def constants(kind, n, value):
    return ir.Constant(vector(kind, n), [value] * n)


def load(builder, address, kind, align=1):
    value = builder.load(builder.inttoptr(address, kind.as_pointer()))
    value.align = align
    return value


def store(builder, value, address, align=1):
    builder.store(value, builder.inttoptr(address, value.type.as_pointer())).align = align


def plus(builder, address, n_bytes):
    return builder.add(address, ir.Constant(I64, n_bytes))


def call(builder, name, kind, *arguments):
    function = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(kind, [argument.type for argument in arguments]), name
    )
    return builder.call(function, arguments)


def fma(builder, a, b, c):
    """a * b + c, rounded once where the CPU can, and then always."""
    if HAS_FMA:
        n = f"v{a.type.count}" if isinstance(a.type, ir.VectorType) else ""
        return call(builder, f"llvm.fma.{n}f32", a.type, a, b, c)
    return builder.fadd(builder.fmul(a, b), c)


def like(value, number):
    """A constant of a value's type, the same in every lane."""
    if isinstance(value.type, ir.VectorType):
        return constants(value.type.element, value.type.count, number)
    return ir.Constant(value.type, number)


def as_type(value, kind):
    """A type with as many lanes as a value has."""
    return vector(kind, value.type.count) if isinstance(value.type, ir.VectorType) else kind


def float_of_half_bits(builder, bits):
    """float32 of float16's bits (int16), lane by lane."""
    if HAS_HALF:
        return builder.fpext(builder.bitcast(bits, as_type(bits, F16)), as_type(bits, F32))
    wide = builder.zext(bits, as_type(bits, I32))
    size = builder.and_(wide, like(wide, 0x7FFF))
    sign = builder.shl(builder.and_(wide, like(wide, 0x8000)), like(wide, 16))
    shifted = builder.shl(size, like(wide, 13))
    # the exponent's bias moves by a multiplication, which takes care of subnormal numbers
    scaled = builder.bitcast(shifted, as_type(bits, F32))
    scaled = builder.fmul(scaled, like(scaled, 2.0**112))
    special = builder.icmp_unsigned(">=", size, like(wide, 0x7C00))
    result = builder.select(
        special,
        builder.or_(shifted, like(wide, 0x7F800000)),
        builder.bitcast(scaled, wide.type),
    )
    return builder.bitcast(builder.or_(result, sign), as_type(bits, F32))


def half_bits_of_float(builder, value):
    """int16: the bits of float32 rounded to the nearest float16, ties to even, lane by lane.

    Without the instruction: F. Giesen's float_to_half_fast3_rtne.
    """
    if HAS_HALF:
        return builder.bitcast(builder.fptrunc(value, as_type(value, F16)), as_type(value, I16))
    bits = builder.bitcast(value, as_type(value, I32))
    sign = builder.lshr(builder.and_(bits, like(bits, 0x80000000)), like(bits, 16))
    size = builder.and_(bits, like(bits, 0x7FFFFFFF))
    magic = 126 << 23  # 0.5: adding it leaves the bits of a subnormal float16 at the end
    small = builder.fadd(builder.bitcast(size, value.type), like(value, 0.5))
    small = builder.sub(builder.bitcast(small, bits.type), like(bits, magic))
    odd = builder.and_(builder.lshr(size, like(bits, 13)), like(bits, 1))
    rebiased = builder.add(size, like(bits, ((15 - 127) << 23) + 0xFFF & 0xFFFFFFFF))
    normal = builder.lshr(builder.add(rebiased, odd), like(bits, 13))
    nan = builder.icmp_unsigned(">", size, like(bits, 0x7F800000))
    large = builder.select(nan, like(bits, 0x7E00), like(bits, 0x7C00))
    result = builder.select(builder.icmp_unsigned("<", size, like(bits, 113 << 23)), small, normal)
    result = builder.select(builder.icmp_unsigned(">=", size, like(bits, 143 << 23)), large, result)
    return builder.trunc(builder.or_(result, sign), as_type(value, I16))


def even_odd(builder, value):
    """The even and the odd lanes of a vector."""
    n = value.type.count
    undefined = ir.Constant(value.type, ir.Undefined)
    return [
        builder.shuffle_vector(
            value, undefined, ir.Constant(vector(I32, n // 2), list(range(first, n, 2)))
        )
        for first in (0, 1)
    ]


def pairs_u8_s8(builder, unsigned, signed):
    """int16 [16]: sums of neighbouring products of uint8 [32] and int8 [32]."""
    if HAS_AVX2:
        return call(builder, "llvm.x86.avx2.pmadd.ub.sw", V16S, unsigned, signed)
    wide = vector(I16, 32)
    products = builder.mul(builder.zext(unsigned, wide), builder.sext(signed, wide))
    return builder.add(*even_odd(builder, products))


def pairs_s16(builder, a, b):
    """int32 [8]: sums of neighbouring products of int16 [16] and int16 [16]."""
    if HAS_AVX2:
        return call(builder, "llvm.x86.avx2.pmadd.wd", V8I, a, b)
    wide = vector(I32, 16)
    return builder.add(
        *even_odd(builder, builder.mul(builder.sext(a, wide), builder.sext(b, wide)))
    )


def exp(builder, x):
    """e^x of float32 [8], to 2 units in the last place; 0 below -87, e^88 above 88.

    Cody-Waite reduction and the polynomial of Cephes' expf.
    """

    def const(value):
        return constants(F32, 8, value)

    low = builder.fcmp_ordered("<", x, const(-87.0))
    x = builder.select(low, const(-87.0), x)
    x = builder.select(builder.fcmp_ordered(">", x, const(88.0)), const(88.0), x)
    n = call(builder, "llvm.floor.v8f32", V8F, fma(builder, x, const(1.44269504), const(0.5)))
    r = fma(builder, n, const(-0.693359375), x)
    r = fma(builder, n, const(2.12194440e-4), r)
    y = const(1.9875691500e-4)
    for c in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 0.5):
        y = fma(builder, y, r, const(c))
    y = builder.fadd(fma(builder, builder.fmul(r, r), y, r), const(1.0))
    bits = builder.shl(
        builder.add(builder.fptosi(n, V8I), constants(I32, 8, 127)), constants(I32, 8, 23)
    )
    y = builder.fmul(y, builder.bitcast(bits, V8F))
    return builder.select(low, const(0.0), y)


class Loop:
    """``for i in range(n)`` with accumulators that live in registers.

    Parameters
    ----------
    start : the accumulators' values before the loop
    """

    def __init__(self, builder, n, start):
        self._builder = builder
        self._n = n
        self._slots = [cgutils.alloca_once_value(builder, value) for value in start]

    def run(self, body):
        """Run ``body(i, values) -> values`` and return the last values."""
        builder = self._builder
        with cgutils.for_range(builder, self._n, intp=I64) as loop:
            values = body(loop.index, [builder.load(slot) for slot in self._slots])
            for slot, value in zip(self._slots, values, strict=True):
                builder.store(value, slot)
        return [builder.load(slot) for slot in self._slots]


def in_tiles(builder, n, sizes, emit):
    """Cover ``range(n)`` by tiles of the given sizes, largest first: ``emit(size, start)`` each."""
    start = ir.Constant(I64, 0)
    for size in sizes:
        wide = ir.Constant(I64, size)
        count = builder.sdiv(builder.sub(n, start), wide)
        with cgutils.for_range(builder, count, intp=I64) as loop:
            emit(size, builder.add(start, builder.mul(loop.index, wide)))
        start = builder.add(start, builder.mul(count, wide))


def rows_of(builder, address, stride, start, n):
    """Addresses of rows ``start`` to ``start + n - 1``, ``stride`` bytes apart."""
    first = builder.add(address, builder.mul(stride, start))
    return [builder.add(first, builder.mul(stride, ir.Constant(I64, t))) for t in range(n)]


# --------------------------------------------------------------------------------------------------
# Quantised weights times int8 activations


def in_tile(builder, places, offset, kind, align):
    """Load a vector of one tile, or of each of two and join them."""
    first, *more = (load(builder, plus(builder, place, offset), kind, align) for place in places)
    if not more:
        return first
    return builder.shuffle_vector(
        first, more[0], ir.Constant(vector(I32, 2 * kind.count), list(range(2 * kind.count)))
    )


def scales(builder, places, offset, wide):
    """float32 [8] of each tile from its 8 scales, float16 or (wide) float32."""
    if wide:
        return in_tile(builder, places, offset, V8F, 4)
    return float_of_half_bits(builder, in_tile(builder, places, offset, V8S, 2))


def number(builder, row, offset, n=8):
    """float32 [n], each the float32 at ``row + offset``."""
    return splat(builder, load(builder, builder.add(row, offset), F32, 4), n)


def add_fours(builder, sums, unsigned, signed):
    """int32 [n]: sums plus those of four neighbouring products of uint8 [4 n] and int8 [4 n]."""
    kind = sums.type
    a, b = (builder.bitcast(value, kind) for value in (unsigned, signed))
    return call(builder, f"llvm.x86.avx512.vpdpbusd.{32 * kind.count}", kind, sums, a, b)


class Sums:
    """Sums of products of a block's columns, int32 [n] for each token, by ``add_fours``.

    Each is some sums that take turns: an instruction waits five cycles for the one whose sum it
    goes on with, and a few tokens have not enough others to fill them.
    """

    def __init__(self, builder, start):
        self._builder = builder
        self._turns = max(1, 4 // len(start))
        rest = [like(start[0], 0)] * (self._turns - 1)
        self._sums = [[one, *rest] for one in start]

    def add(self, step, weights, xs, offset):
        """Add products with four int8 at ``offset`` of each row; ``step`` counts up."""
        builder = self._builder
        turn = step % self._turns
        for sums, x in zip(self._sums, xs, strict=True):
            n = sums[turn].type.count
            four = splat(builder, load(builder, plus(builder, x, offset), I32, 4), n)
            sums[turn] = add_fours(builder, sums[turn], weights, four)

    def whole(self):
        """The sums of all turns."""
        return [reduce(self._builder.add, sums) for sums in self._sums]


def blocks_of(builder, tiles, i, n_bytes):
    """Where block ``i`` of each tile is; what comes after it is asked of memory."""
    offset = builder.mul(i, ir.Constant(I64, n_bytes))
    places = [builder.add(tile, offset) for tile in tiles]
    for place in places:
        prefetch(builder, place, n_bytes)
    return places


def prefetch(builder, here, n_bytes):
    """Ask for the cache lines of the block ``AHEAD`` of this one; there need not be any."""
    kind = I8.as_pointer()
    function = cgutils.get_or_insert_function(
        builder.module,
        ir.FunctionType(ir.VoidType(), [kind, I32, I32, I32]),
        "llvm.prefetch.p0i8",
    )
    numbers = [ir.Constant(I32, n) for n in (0, 3, 1)]  # to read, into all caches, data
    for start in range(0, n_bytes, 64):
        at = builder.inttoptr(plus(builder, here, AHEAD + start), kind)
        builder.call(function, [at, *numbers])


def four_bits(builder, wide, tiles, i, xs, zs):
    """A block of 32 unsigned 4-bit weights: each token's sum of products, scales, least values."""
    scale_bytes = 32 if wide else 16
    here = blocks_of(builder, tiles, i, 128 + 2 * scale_bytes)
    rows = [builder.add(x, builder.mul(i, ir.Constant(I64, 32))) for x in xs]
    add_up = fours_of_bytes if HAS_VNNI else pairs_of_bytes
    whole = add_up(builder, nibbles(builder, here), rows, 8 * len(tiles))
    scale = scales(builder, here, 128, wide)
    least = scales(builder, here, 128 + scale_bytes, wide)
    return whole, scale, least


def nibbles(builder, places):
    """A block's weights by four columns, uint8 [32] of each tile."""
    for j in range(4):
        both = in_tile(builder, places, 32 * j, V32B, 16)
        # shifted as int16: x86 has no shift of bytes
        shifted = builder.bitcast(both, vector(I16, both.type.count // 2))
        shifted = builder.bitcast(builder.lshr(shifted, like(shifted, 4)), both.type)
        for part in (both, shifted):
            yield builder.and_(part, like(part, 15))


def fours_of_bytes(builder, weights, rows, lanes):
    """Sums, int32 [lanes] for each row of int8 activations, of products with uint8 weights."""
    sums = Sums(builder, [constants(I32, lanes, 0)] * len(rows))
    for step, four in enumerate(weights):
        sums.add(step, four, rows, 4 * step)
    return sums.whole()


def pairs_of_bytes(builder, weights, rows, lanes):
    """The same of weights below 16, without the instruction that does it."""
    products = [None] * len(rows)
    for step, four in enumerate(weights):
        for t, row in enumerate(rows):
            numbers = splat(builder, load(builder, plus(builder, row, 4 * step), I32, 4), lanes)
            more = pairs_u8_s8(builder, four, builder.bitcast(numbers, V32B))
            # 8 sums of two products of at most 15 * 127 stay below 2**15
            products[t] = more if products[t] is None else builder.add(products[t], more)
    return [pairs_s16(builder, sums, constants(I16, 16, 1)) for sums in products]


def eight_bits(builder, wide, tiles, i, xs, zs):
    """A block of signed 8-bit weights, 32 with float16 scales, or (wide) 16 with float32 and least.

    Returns as ``four_bits`` does; the least values are None where there are none.
    """
    n = 16 if wide else 32
    here = blocks_of(builder, tiles, i, 8 * n + (64 if wide else 16))
    x_offset = builder.mul(i, ir.Constant(I64, 2 * n))
    whole = [None] * len(xs)
    for j in range(n // 2):
        narrow = in_tile(builder, here, 16 * j, vector(I8, 16), 16)
        weights = builder.sext(narrow, V16S)
        for t, x in enumerate(xs):
            at = plus(builder, builder.add(x, x_offset), 4 * j)
            two = builder.bitcast(splat(builder, load(builder, at, I32, 4), 8), V16S)
            more = pairs_s16(builder, weights, two)
            whole[t] = more if whole[t] is None else builder.add(whole[t], more)
    scale = scales(builder, here, 8 * n, wide)
    least = scales(builder, here, 8 * n + 32, wide) if wide else None
    return whole, scale, least


def eight_bits_by_fours(builder, wide, tiles, i, xs, zs):
    """As ``eight_bits`` with float16 scales, four columns at a time; xs are int8 activations.

    The instruction wants one side unsigned: weights get 128 added, and the sums begin with what
    that adds too much, -128 times the block's activations (zs).
    """
    here = blocks_of(builder, tiles, i, 272)
    lanes = 8 * len(tiles)
    z_offset = builder.mul(i, ir.Constant(I64, 4))
    start = [splat(builder, load(builder, builder.add(z, z_offset), I32, 4), lanes) for z in zs]
    rows = [builder.add(x, builder.mul(i, ir.Constant(I64, 32))) for x in xs]
    # of two columns, rows in turn, and the next two, to a row's four columns side by side
    order = [
        16 * tile + row + two for tile in range(len(tiles)) for row in range(8) for two in (0, 8)
    ]
    sums = Sums(builder, start)
    for step in range(8):
        narrow = in_tile(builder, here, 32 * step, V32B, 16)
        words = builder.bitcast(narrow, vector(I16, 2 * lanes))
        words = builder.shuffle_vector(words, words, ir.Constant(vector(I32, 2 * lanes), order))
        weights = builder.bitcast(words, narrow.type)
        sums.add(step, builder.xor(weights, like(weights, -128)), rows, 4 * step)
    return sums.whole(), scales(builder, here, 256, False), None


def quantised_tiles(products, wide, d_shift, block_bytes, at_once=1):
    """An intrinsic that multiplies tiles of 8 weight rows with the activations of all tokens.

    Its arguments: (n_tiles, n_tokens, w, x, x_stride, d, d_stride, s, s_stride, n_blocks, out,
    out_stride), addresses and strides in bytes; x the activations as integers, d their scales, s
    the sums of the blocks' activations; float32 out[t, 0 : 8 n_tiles]. ``2**d_shift`` blocks share
    an activation scale; a tile's block has ``block_bytes``. ``at_once``: 2 where ``products`` knows
    how to take two tiles.
    """

    @intrinsic
    def run(
        typingctx, n_tiles, n_tokens, w, x, x_stride, d, d_stride, s, s_stride, n_blocks, out,
        out_stride,
    ):  # fmt: skip
        def codegen(context, builder, signature, arguments):
            (n_tiles, n_tokens, w, x, x_stride, d, d_stride, s, s_stride, n_blocks, out,
             out_stride) = arguments  # fmt: skip
            tile_bytes = builder.mul(n_blocks, ir.Constant(I64, block_bytes))

            def emit_tiles(n_wide, tile):
                tiles = rows_of(builder, w, tile_bytes, tile, n_wide)
                to = builder.add(out, builder.mul(tile, ir.Constant(I64, 32)))
                lanes = 8 * n_wide

                def emit(size, start):
                    xs, ds, ss, outs = (
                        rows_of(builder, address, stride, start, size)
                        for address, stride in (
                            (x, x_stride),
                            (d, d_stride),
                            (s, s_stride),
                            (to, out_stride),
                        )
                    )

                    def block(i, sums):
                        whole, scale, least = products(builder, wide, tiles, i, xs, ss)
                        shared = builder.lshr(i, ir.Constant(I64, d_shift))
                        d_offset = builder.shl(shared, ir.Constant(I64, 2))
                        s_offset = builder.shl(i, ir.Constant(I64, 2))
                        after = []
                        for t in range(size):
                            both = builder.fmul(scale, number(builder, ds[t], d_offset, lanes))
                            whole_t = builder.sitofp(whole[t], both.type)
                            total = fma(builder, whole_t, both, sums[t])
                            if least is not None:
                                add = number(builder, ss[t], s_offset, lanes)
                                total = fma(builder, least, add, total)
                            after.append(total)
                        return after

                    start_at = [constants(F32, lanes, 0.0)] * size
                    sums = Loop(builder, n_blocks, start_at).run(block)
                    for total, place in zip(sums, outs, strict=True):
                        store(builder, total, place, align=4)

                in_tiles(builder, n_tokens, PAIR_SIZES if n_wide > 1 else (4, 3, 2, 1), emit)

            in_tiles(builder, n_tiles, (2, 1) if at_once > 1 else (1,), emit_tiles)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 12), codegen

    return run


AT_ONCE = 2 if HAS_PAIRS else 1
u4_half_tiles = quantised_tiles(four_bits, False, 0, 160, AT_ONCE)
u4_float_tiles = quantised_tiles(four_bits, True, 0, 192, AT_ONCE)
# By fours it takes int8 activations, and for s the z of quantise_row.
s8_half_tiles = quantised_tiles(
    eight_bits_by_fours if HAS_VNNI else eight_bits, False, 0, 272, AT_ONCE
)
s8_float_tiles = quantised_tiles(eight_bits, True, 1, 192)


@intrinsic
def quantise_row(typingctx, x, n_blocks, x8, x16, d, s, h, z):
    """Quantise float32 [32 * n_blocks] to integers of -127 to 127, as llama.cpp's Q8_1 does.

    To the addresses go: x8 int8, x16 the same as int16, and a block each d (scale) and s (scale
    times sum), both rounded to float16 as there, h [2], the unrounded same of its halves, and z
    int32, -128 times the sum of the integers.
    """

    def codegen(context, builder, signature, arguments):
        x, n_blocks, x8, x16, d, s, h, z = arguments

        def larger(a, b):
            return builder.select(builder.fcmp_ordered(">", a, b), a, b)

        def step(i, values):
            here = builder.add(x, builder.mul(i, ir.Constant(I64, 128)))
            parts = [load(builder, plus(builder, here, 32 * v), V8F, 4) for v in range(4)]
            sizes = [call(builder, "llvm.fabs.v8f32", V8F, part) for part in parts]
            top = larger(larger(sizes[0], sizes[1]), larger(sizes[2], sizes[3]))
            top = across(builder, top, larger)
            scale = builder.fdiv(top, ir.Constant(F32, 127.0))
            some = builder.fcmp_ordered(">", top, ir.Constant(F32, 0.0))
            inverse = builder.select(
                some, builder.fdiv(ir.Constant(F32, 127.0), top), ir.Constant(F32, 0.0)
            )
            halves = []
            totals = []
            for v, part in enumerate(parts):
                nearest = call(
                    builder, "llvm.rint.v8f32", V8F, builder.fmul(part, splat(builder, inverse, 8))
                )
                whole = builder.fptosi(nearest, V8I)
                totals.append(whole)
                small = plus(builder, builder.add(x8, builder.mul(i, ir.Constant(I64, 32))), 8 * v)
                store(builder, builder.trunc(whole, vector(I8, 8)), small)
                wide = plus(builder, builder.add(x16, builder.mul(i, ir.Constant(I64, 64))), 16 * v)
                store(builder, builder.trunc(whole, vector(I16, 8)), wide)
            for v in (0, 2):
                total = across(builder, builder.add(totals[v], totals[v + 1]), builder.add)
                halves.append(builder.fmul(builder.sitofp(total, F32), scale))
            offset = builder.mul(i, ir.Constant(I64, 4))
            total = across(
                builder,
                builder.add(builder.add(totals[0], totals[1]), builder.add(totals[2], totals[3])),
                builder.add,
            )
            excess = builder.mul(total, ir.Constant(I32, -128))
            store(builder, excess, builder.add(z, offset), 4)
            both = builder.fmul(builder.sitofp(total, F32), scale)
            for value, to in ((scale, d), (both, s)):
                rounded = float_of_half_bits(builder, half_bits_of_float(builder, value))
                store(builder, rounded, builder.add(to, offset), 4)
            at = builder.add(h, builder.mul(i, ir.Constant(I64, 8)))
            for v, value in enumerate(halves):
                store(builder, value, plus(builder, at, 4 * v), 4)
            return values

        Loop(builder, n_blocks, []).run(step)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 8), codegen


# --------------------------------------------------------------------------------------------------
# Float panels: float weights, keys and values


def load_floats(builder, address, kind):
    """float32 [8] from 8 numbers of a panel: 0 float32, 1 float16, 2 bfloat16."""
    if kind == 0:
        return load(builder, address, V8F, align=4)
    if kind == 1:
        return float_of_half_bits(builder, load(builder, address, V8S, align=2))
    bits = builder.zext(load(builder, address, V8S, align=2), V8I)
    return builder.bitcast(builder.shl(bits, constants(I32, 8, 16)), V8F)


def panel_tile(kind):
    """An intrinsic: out[r, 0:16] = sum over i < n of a[r, i] * b[i, 0:16], for all rows.

    Its arguments: (n_rows, a, a_stride, b, b_stride, n, out, out_stride), addresses and strides in
    bytes; a and out are float32.
    """
    item = 4 if kind == 0 else 2

    @intrinsic
    def run(typingctx, n_rows, a, a_stride, b, b_stride, n, out, out_stride):
        def codegen(context, builder, signature, arguments):
            n_rows, a, a_stride, b, b_stride, n, out, out_stride = arguments

            def emit(size, start):
                rows = rows_of(builder, a, a_stride, start, size)
                outs = rows_of(builder, out, out_stride, start, size)

                def step(i, sums):
                    here = builder.add(b, builder.mul(i, b_stride))
                    columns = [
                        load_floats(builder, plus(builder, here, 8 * item * v), kind)
                        for v in range(2)
                    ]
                    offset = builder.shl(i, ir.Constant(I64, 2))
                    after = []
                    for t, row in enumerate(rows):
                        one = number(builder, row, offset)
                        after += [fma(builder, one, columns[v], sums[2 * t + v]) for v in range(2)]
                    return after

                start_at = [constants(F32, 8, 0.0)] * (2 * size)
                sums = Loop(builder, n, start_at).run(step)
                for i, total in enumerate(sums):
                    store(builder, total, plus(builder, outs[i // 2], 32 * (i % 2)), align=4)

            in_tiles(builder, n_rows, (6, 3, 1), emit)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 8), codegen

    return run


f32_tile = panel_tile(0)
f16_tile = panel_tile(1)
bf16_tile = panel_tile(2)


# --------------------------------------------------------------------------------------------------
# Rows of floats


def across(builder, value, combine):
    """All lanes of float32 [8] combined, in a fixed order."""
    while value.type.count > 1:
        n = value.type.count // 2
        halves = [
            builder.shuffle_vector(
                value,
                ir.Constant(value.type, ir.Undefined),
                ir.Constant(vector(I32, n), list(range(first, first + n))),
            )
            for first in (0, n)
        ]
        value = combine(*halves)
    return builder.extract_element(value, ir.Constant(I32, 0))


@intrinsic
def row_squares(typingctx, address, n_vectors):
    """The sum of squares of 8 * n_vectors float32."""

    def codegen(context, builder, signature, arguments):
        address, n_vectors = arguments

        def step(i, values):
            here = builder.add(address, builder.mul(i, ir.Constant(I64, 32)))
            value = load(builder, here, V8F, 4)
            return [fma(builder, value, value, values[0])]

        (lanes,) = Loop(builder, n_vectors, [constants(F32, 8, 0.0)]).run(step)
        return across(builder, lanes, builder.fadd)

    return types.float32(types.int64, types.int64), codegen


@intrinsic
def row_max(typingctx, address, n_vectors):
    """The largest of 8 * n_vectors float32."""

    def codegen(context, builder, signature, arguments):
        address, n_vectors = arguments

        def larger(a, b):
            return builder.select(builder.fcmp_ordered(">", a, b), a, b)

        def step(i, values):
            here = builder.add(address, builder.mul(i, ir.Constant(I64, 32)))
            return [larger(load(builder, here, V8F, 4), values[0])]

        (lanes,) = Loop(builder, n_vectors, [constants(F32, 8, float("-inf"))]).run(step)
        return across(builder, lanes, larger)

    return types.float32(types.int64, types.int64), codegen


@intrinsic
def row_exp(typingctx, address, n_vectors, top):
    """Replace 8 * n_vectors float32 by e^(x - top); return their sum."""

    def codegen(context, builder, signature, arguments):
        address, n_vectors, top = arguments
        tops = splat(builder, top, 8)

        def step(i, values):
            here = builder.add(address, builder.mul(i, ir.Constant(I64, 32)))
            value = exp(builder, builder.fsub(load(builder, here, V8F, 4), tops))
            store(builder, value, here, 4)
            return [builder.fadd(values[0], value)]

        (lanes,) = Loop(builder, n_vectors, [constants(F32, 8, 0.0)]).run(step)
        return across(builder, lanes, builder.fadd)

    return types.float32(types.int64, types.int64, types.float32), codegen


@intrinsic
def row_activate(typingctx, gate, up, n_vectors, out, gelu):
    """out = activation(gate) * up, 8 * n_vectors float32: SiLU, or (gelu) GELU's tanh form."""

    def codegen(context, builder, signature, arguments):
        gate, up, n_vectors, out, gelu = arguments
        one = constants(F32, 8, 1.0)
        gelus = splat(builder, gelu, 8)
        linear = constants(F32, 8, 2 * 0.7978845608028654)
        cubic = constants(F32, 8, 2 * 0.7978845608028654 * 0.044715)

        def step(i, values):
            offset = builder.mul(i, ir.Constant(I64, 32))
            x = load(builder, builder.add(gate, offset), V8F, 4)
            # x * sigmoid(z): z = x, or 2 * sqrt(2 / pi) * (x + 0.044715 x^3)
            inner = builder.fmul(x, fma(builder, builder.fmul(x, x), cubic, linear))
            z = builder.select(gelus, inner, x)
            sigmoid = builder.fdiv(one, builder.fadd(one, exp(builder, builder.fneg(z))))
            other = load(builder, builder.add(up, offset), V8F, 4)
            gated = builder.fmul(builder.fmul(x, sigmoid), other)
            store(builder, gated, builder.add(out, offset), 4)
            return values

        Loop(builder, n_vectors, []).run(step)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, types.int64, types.boolean), codegen


@intrinsic
def half_bits(typingctx, value):
    """uint16: the bits of float32 rounded to float16."""

    def codegen(context, builder, signature, arguments):
        return half_bits_of_float(builder, arguments[0])

    return types.uint16(types.float32), codegen


@intrinsic
def float_of_half(typingctx, bits):
    """float32 of a float16's bits."""

    def codegen(context, builder, signature, arguments):
        return float_of_half_bits(builder, arguments[0])

    return types.float32(types.uint16), codegen


@intrinsic
def bits_of_float(typingctx, value):
    """uint32: the bits of a float32."""

    def codegen(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], I32)

    return types.uint32(types.float32), codegen


@intrinsic
def word_at(typingctx, address):
    """int64: the 4 bytes at any address, unsigned, lowest first."""

    def codegen(context, builder, signature, arguments):
        return builder.zext(load(builder, arguments[0], I32), I64)

    return types.int64(types.int64), codegen


@intrinsic
def put_word(typingctx, address, value):
    """Write the lowest 4 bytes of an int64 to any address."""

    def codegen(context, builder, signature, arguments):
        store(builder, builder.trunc(arguments[1], I32), arguments[0])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def put_half_word(typingctx, address, value):
    """Write the lowest 2 bytes of an int64 to any address."""

    def codegen(context, builder, signature, arguments):
        store(builder, builder.trunc(arguments[1], I16), arguments[0])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def stay_out(typingctx):
    """Keep LLVM from copying the function that says this into its callers, which takes long."""

    def codegen(context, builder, signature, arguments):
        builder.function.attributes.add("noinline")
        return context.get_dummy_value()

    return types.void(), codegen


# --------------------------------------------------------------------------------------------------
# Threads


@intrinsic
def atomic_add(typingctx, address, value):
    """Add to the int64 at an address; return what it was before."""

    def codegen(context, builder, signature, arguments):
        pointer = builder.inttoptr(arguments[0], I64.as_pointer())
        return builder.atomic_rmw("add", pointer, arguments[1], "seq_cst")

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def atomic_read(typingctx, address):
    """The int64 at an address, as other threads left it."""

    def codegen(context, builder, signature, arguments):
        pointer = builder.inttoptr(arguments[0], I64.as_pointer())
        return builder.load_atomic(pointer, "acquire", 8)

    return types.int64(types.int64), codegen


@intrinsic
def relax(typingctx):
    """Tell the CPU that this is a waiting loop."""

    def codegen(context, builder, signature, arguments):
        if ON_X86:
            call(builder, "llvm.x86.sse2.pause", ir.VoidType())
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def give_way(typingctx):
    """Let another thread have this CPU."""

    def codegen(context, builder, signature, arguments):
        if os.name == "posix":
            call(builder, "sched_yield", I32)
        return context.get_dummy_value()

    return types.void(), codegen


@njit(inline="never", nogil=True, error_model="numpy")
def barrier(address, n_threads):
    """Wait until all threads are here. ``address``: of an int64 that began as 0."""
    if n_threads == 1:
        return
    arrival = atomic_add(address, 1)
    goal = (arrival // n_threads + 1) * n_threads
    n_spins = 0
    while atomic_read(address) < goal:
        n_spins += 1
        if n_spins & 2047:
            relax()
        else:
            give_way()
