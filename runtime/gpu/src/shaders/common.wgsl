// What every kernel shares: bindings, and reading numbers at byte offsets of the weights.

// One dispatch.
struct Task {
    columns: u32,   // values of a row
    eights: u32,    // groups of eight values of a row, the last one filled up with zeros
    row_bytes: u32,
    first_row: u32, // of the rows in `words`
    rows: u32,
    vectors: u32,
    stride: u32,    // outputs from one vector to the next
    offset: u32,    // the first output of the first vector
}

// Eight values at consecutive columns.
struct Eight {
    a: vec4<f32>,
    b: vec4<f32>,
}

@group(0) @binding(0) var<storage, read> words: array<u32>;
@group(0) @binding(1) var<storage, read> vectors: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> outputs: array<f32>;
@group(0) @binding(3) var<storage, read> points: array<u32>;
var<immediate> task: Task;

// Four bytes at any offset. The word behind the last one is there: buffers are padded.
fn word(at: u32) -> u32 {
    let shift = (at & 3u) * 8u;
    // a shift by 32 would be one by 0
    return (words[at / 4u] >> shift) | ((words[at / 4u + 1u] << 1u) << (31u - shift));
}

// Four bytes at a multiple of four.
fn aligned(at: u32) -> u32 {
    return words[at / 4u];
}

fn byte(at: u32) -> u32 {
    return (words[at / 4u] >> ((at & 3u) * 8u)) & 255u;
}

// Two bytes at a multiple of two.
fn pair(at: u32) -> u32 {
    return (words[at / 4u] >> ((at & 2u) * 8u)) & 0xffffu;
}

// The number with the half-precision bits in the lower 16. Integers build it, because a device may read
// subnormal halves as zero.
fn from_half(bits: u32) -> f32 {
    let exponent = (bits >> 10u) & 31u;
    let mantissa = bits & 1023u;
    let rebiased = select(exponent + 112u, 255u, exponent == 31u);
    let normal = bitcast<f32>((rebiased << 23u) | (mantissa << 13u));
    let size = select(normal, f32(mantissa) * 0x1p-24, exponent == 0u);
    return select(size, -size, (bits & 0x8000u) != 0u);
}

// The half-precision number at a multiple of two.
fn half(at: u32) -> f32 {
    return from_half(pair(at));
}

fn bytes(four: u32) -> vec4<f32> {
    return vec4<f32>((vec4<u32>(four) >> vec4<u32>(0u, 8u, 16u, 24u)) & vec4<u32>(255u));
}

fn signed_bytes(four: u32) -> vec4<f32> {
    let high = bitcast<vec4<i32>>(vec4<u32>(four) << vec4<u32>(24u, 16u, 8u, 0u));
    return vec4<f32>(high >> vec4<u32>(24u));
}

// The lowest four bits, as numbers 0 and 1.
fn bits(four: u32) -> vec4<f32> {
    return vec4<f32>((vec4<u32>(four) >> vec4<u32>(0u, 1u, 2u, 3u)) & vec4<u32>(1u));
}

// The fields of `mask` in eight bytes from `at` on, after a shift down.
fn fields(at: u32, shift: u32, mask: u32) -> Eight {
    return Eight(bytes((word(at) >> shift) & mask), bytes((word(at + 4u) >> shift) & mask));
}

// One nibble of each of eight bytes from `at` on.
fn nibbles(at: u32, shift: u32) -> Eight {
    return fields(at, shift, 0x0f0f0f0fu);
}

// scale * step + offset
fn scaled(scale: f32, steps: Eight, offset: f32) -> Eight {
    return Eight(scale * steps.a + offset, scale * steps.b + offset);
}

fn sum(a: Eight, b: Eight) -> Eight {
    return Eight(a.a + b.a, a.b + b.b);
}

fn times(factor: f32, steps: Eight) -> Eight {
    return Eight(factor * steps.a, factor * steps.b);
}

// A table of sixteen signed bytes, looked up by four bytes below 16.
fn look_up_four(table: vec4<u32>, at: u32) -> vec4<f32> {
    let i = (vec4<u32>(at) >> vec4<u32>(0u, 8u, 16u, 24u)) & vec4<u32>(15u);
    let found = vec4<u32>(table[i.x / 4u], table[i.y / 4u], table[i.z / 4u], table[i.w / 4u]);
    let high = bitcast<vec4<i32>>(found << (vec4<u32>(24u) - (i & vec4<u32>(3u)) * 8u));
    return vec4<f32>(high >> vec4<u32>(24u));
}

// Nibbles of eight bytes from `at` on, each looked up.
fn looked_up(table: vec4<u32>, at: u32, shift: u32) -> Eight {
    return Eight(
        look_up_four(table, (word(at) >> shift) & 0x0f0f0f0fu),
        look_up_four(table, (word(at + 4u) >> shift) & 0x0f0f0f0fu),
    );
}

// The steps of IQ4_NL and IQ4_XS.
const UNEVEN = vec4<u32>(0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u);
// Twice the values of four-bit floats.
const TWICE_E2M1 = vec4<u32>(0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu);

// Steps with eight bits of signs: a set bit negates.
fn negated(steps: Eight, signs: u32) -> Eight {
    return Eight(steps.a * (1.0 - 2.0 * bits(signs)), steps.b * (1.0 - 2.0 * bits(signs >> 4u)));
}

// Seven signs, and the eighth that makes the number of negative ones even.
fn eight_signs(seven: u32) -> u32 {
    return seven | ((countOneBits(seven) & 1u) << 7u);
}

// A point of eight numbers; `grid` is the first word of the format's grid.
fn point(grid: u32, index: u32) -> Eight {
    return Eight(signed_bytes(points[grid + 2u * index]), signed_bytes(points[grid + 2u * index + 1u]));
}

// Two points of four numbers.
fn two_points(grid: u32, first: u32, second: u32) -> Eight {
    return Eight(signed_bytes(points[grid + first]), signed_bytes(points[grid + second]));
}

// Scale `k` of eight (x), and its minimum (y), out of twelve bytes of six-bit numbers.
fn six_bits(at: u32, k: u32) -> vec2<f32> {
    if k < 4u {
        return vec2<f32>(f32(byte(at + k) & 63u), f32(byte(at + k + 4u) & 63u));
    }
    let lower = byte(at + k + 4u);
    let scale = (lower & 15u) | ((byte(at + k - 4u) >> 6u) << 4u);
    let minimum = (lower >> 4u) | ((byte(at + k) >> 6u) << 4u);
    return vec2<f32>(f32(scale), f32(minimum));
}
