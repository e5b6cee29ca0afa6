//! Matrices that meet the same vectors in one submission, as an engine asks for them.

use kernels::ProductUnit as _;

use super::*;
use crate::Beside;

#[test]
fn matrices_together_give_the_bits_of_each_alone_in_their_columns() {
    let Some(first) = adapter() else { return };
    let mut beside = Beside::open(&first, LIMITS).expect("an open unit");
    let mut alone = Unit::open(&first, LIMITS).expect("another");
    assert_eq!(beside.name(), first.identity(), "the name that plans have");
    let noise = &mut Noise(3);
    let all = [(Format::Q4_0, 12), (Format::F32, 70), (Format::Q6K, 4)]
        .map(|(format, rows)| Weights::moderate(noise, format, rows, 512));
    let numbers = all.each_ref().map(|weights| beside.load(weights.matrix()).expect("resident"));
    assert_eq!(numbers, [0, 1, 2], "in order");
    for count in [1, 9, 64] {
        let x = noise.vectors(count * 512);
        // gaps between the columns, and columns before and behind them, belong to the cores
        let (stride, firsts) = (120, [3, 20, 100]);
        let mut found = vec![-7.0; count * stride];
        beside.begin(&numbers, &x).expect("begun");
        beside.finish(&mut found, stride, &firsts).expect("finished");
        let mut expected = vec![-7.0; count * stride];
        for (weights, first) in all.iter().zip(firsts) {
            let w = alone.load(&weights.matrix()).expect("resident");
            let mut out = vec![0.0; count * weights.rows];
            alone.products(&w, &x, &mut out).expect("products");
            for (t, out) in out.chunks_exact(weights.rows).enumerate() {
                expected[t * stride + first..][..weights.rows].copy_from_slice(out);
            }
        }
        assert_eq!(found, expected, "{count} vectors: the bits of each, and nothing else is written");
    }
    assert!(beside.held_bytes() > 0 && beside.held_bytes() <= LIMITS.memory_bytes, "it holds them");
}

#[test]
fn places_that_do_not_fit_are_refused_and_the_next_call_works() {
    let Some(first) = adapter() else { return };
    let mut beside = Beside::open(&first, LIMITS).expect("an open unit");
    let noise = &mut Noise(5);
    let narrow = Weights::moderate(noise, Format::Q8_0, 8, 64);
    let wide = Weights::moderate(noise, Format::Q8_0, 8, 128);
    let numbers = [&narrow, &wide].map(|weights| beside.load(weights.matrix()).expect("resident"));
    let (x, mut out) = (noise.vectors(2 * 64), vec![0.0; 2 * 10]);
    assert!(beside.begin(&numbers, &x).is_err(), "two widths");
    assert!(beside.finish(&mut out, 10, &[0, 0]).is_err(), "nothing was begun");
    for (stride, first) in [(10, 3), (10, usize::MAX), (9, 0)] {
        beside.begin(&numbers[..1], &x).expect("begun");
        assert!(beside.finish(&mut out, stride, &[first]).is_err(), "{stride}, {first}");
    }
    beside.begin(&numbers[..1], &x).expect("begun");
    assert!(beside.finish(&mut out, 10, &[2, 3]).is_err(), "a place too many");
    let too_many = vec![0.0; 64 << 14];
    assert!(beside.begin(&numbers[..1], &too_many).is_err(), "more than the buffers hold");
    beside.begin(&numbers[..1], &x).expect("begun");
    beside.finish(&mut out, 10, &[2]).expect("finished");
    assert_eq!((out[0], out[1], out[10]), (0.0, 0.0, 0.0), "before its columns");
    assert!(out[2..10].iter().all(|value| *value != 0.0), "its columns");
    let refused = Beside::open(&first, Limits { transfer_bytes: u64::MAX, ..LIMITS }).map(|_| ());
    assert!(refused.is_err(), "buffers beyond what a shader binds: {refused:?}");
}
