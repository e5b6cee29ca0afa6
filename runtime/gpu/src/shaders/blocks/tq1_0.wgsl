// q: five of a byte, 48 bytes | q: four of a byte, 4 bytes | d: f16
fn digits(four: u32, power: vec4<u32>) -> vec4<f32> {
    let q = (vec4<u32>(four) >> vec4<u32>(0u, 8u, 16u, 24u)) & vec4<u32>(255u);
    return vec4<f32>((((q * power) & vec4<u32>(255u)) * 3u) >> vec4<u32>(8u));
}

fn power_of_three(n: u32) -> u32 {
    return (1u + 2u * (n & 1u)) * (1u + 8u * ((n >> 1u) & 1u)) * (1u + 80u * (n >> 2u));
}

fn eight(block: u32, i: u32) -> Eight {
    // 160 values of 32 bytes, 80 of 16, and 16 of four
    var steps: Eight;
    if i < 30u {
        let longer = i < 20u;
        let at = block + select(32u + 8u * (i % 2u), 8u * (i % 4u), longer);
        let power = vec4<u32>(power_of_three(select((i - 20u) / 2u, i / 4u, longer)));
        steps = Eight(digits(word(at), power), digits(word(at + 4u), power));
    } else {
        let n = 2u * (i % 2u);
        let four = word(block + 48u);
        steps = Eight(digits(four, vec4<u32>(power_of_three(n))), digits(four, vec4<u32>(power_of_three(n + 1u))));
    }
    return times(half(block + 52u), scaled(1.0, steps, -1.0));
}
