// sum + w . x, in the order of the columns
fn add_four(w: vec4<f32>, x: vec4<f32>, sum: f32) -> f32 {
    return fma(w.w, x.w, fma(w.z, x.z, fma(w.y, x.y, fma(w.x, x.x, sum))));
}

fn add_eight(w: Eight, a: vec4<f32>, b: vec4<f32>, sum: f32) -> f32 {
    return add_four(w.b, b, add_four(w.a, a, sum));
}
