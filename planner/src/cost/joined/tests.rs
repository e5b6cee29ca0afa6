//! Tests of `joined.rs`.

use super::*;

#[test]
fn runs_are_single_neurons_when_misses_are_rare_and_whole_buffers_when_all_miss() {
    let rare = Run::new(Chances::new(1e-6, None, [(3, None), (8, None)]), &even(0, 32.0));
    assert!((rare.neurons - 1.0).abs() < 1e-3 && rare.more_bytes < 8.0, "{rare:?}");
    assert_eq!(Run::new(Chances::ALL, &even(0, 32.0)), Run { neurons: 32.0, more_bytes: 31.0 * 8192.0 });
    assert_eq!(
        Run::new(Chances::new(0.5, None, [(3, None), (8, None)]), &even(3, 1.0)),
        Run { neurons: 1.0, more_bytes: 0.0 }
    );
}

/// Bundles of two pages, in reads of so many at most.
fn even(gap: usize, most: f64) -> Joined {
    let of = (0..=gap).map(|between| (1.0, 8192.0 * (between + 1) as f64)).collect();
    Joined { of, most, stride_bytes: 8192.0 }
}

#[test]
fn reads_hold_neighbours_whose_pages_they_reach() {
    // whole pages: as many as the bytes say
    let pages = BundleLayout::new(2304, 2304, 2304);
    assert_eq!(Joined::new(&pages, Part::Whole, 3 * 8192, 65536), even(3, 8.0));
    // eight places in a page; a page and the one after it hold five neurons from its front, three from behind
    let small = BundleLayout::new(512, 512, 512);
    let joined = Joined::new(&small, Part::Whole, 0, 8192);
    // the next is held but from the last of a page's places whose neighbour ends on a third page; its bytes by hand
    let page = PAGE_BYTES as f64;
    assert_eq!(joined.of[0], (1.0, 3.0 / 8.0 * page));
    assert_eq!(joined.of.len(), 4, "{joined:?}");
    assert!((3.0..4.5).contains(&joined.most));
    // where reads are longer than that, gaps decide
    let far = Joined::new(&small, Part::Whole, 0, 1 << 20);
    assert!(far.of.len() >= 4 && far.of.iter().zip(&joined.of).all(|(far, near)| far.0 >= near.0));
}

/// A layer whose neurons miss by chance, read as the engine does: whole pages, joined while a read holds the next.
#[test]
fn reads_of_small_bundles_are_those_that_counting_finds() {
    let small = BundleLayout::new(512, 512, 512);
    let single = small.read_bytes_mean(1152, Part::Whole) as f64;
    // where gaps of several pages meet small buffers, a read's last step is shorter than its mean one
    for (density, gap_bytes, buffer_bytes, off) in [
        (0.03, 0, 8192, 0.02),
        (0.1, 4608, 8192, 0.02),
        (0.1, 0, 16384, 0.03),
        (0.1, 10752, 16384, 0.12),
        (0.2, 23040, 65536, 0.12),
    ] {
        let (mut state, mut misses, mut reads, mut bytes) = (7u64, 0.0, 0.0, 0.0);
        let mut read: Option<(u64, u64)> = None;
        for neuron in 0..400_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            if (state >> 33) as f64 / (1u64 << 31) as f64 >= density {
                continue;
            }
            misses += 1.0;
            let pages = small.slice_span(neuron, Part::Whole).pages();
            let end = pages.offset + pages.bytes;
            let held = read.filter(|&(first, last)| {
                pages.offset.saturating_sub(last) <= gap_bytes && end - first <= buffer_bytes
            });
            if held.is_none() {
                reads += 1.0;
                bytes += read.map_or(0, |(first, last)| last - first) as f64;
            }
            read = Some((held.map_or(pages.offset, |(first, _)| first), end));
        }
        let chances = Chances { alone: 1.0 - density, begins: [density; 2] };
        let run = Run::new(chances, &Joined::new(&small, Part::Whole, gap_bytes, buffer_bytes));
        let [neurons, block] = [misses / reads, bytes / reads];
        let told = single + run.more_bytes;
        assert!((run.neurons / neurons - 1.0).abs() < off, "{neurons} against {run:?}, {gap_bytes}");
        assert!((told / block - 1.0).abs() < off, "{block} against {told}, {density} {gap_bytes}");
    }
}

#[test]
fn a_run_agrees_with_counting_over_random_positions() {
    let (density, positions) = (0.2, 400_000);
    let most = 1e6;
    for (alone, further, gap, most) in [
        (0.8, 1.0, 0, most),
        (0.8, 1.0, 2, most),
        (0.5, 1.0, 0, most),
        (0.5, 1.0, 3, most),
        (0.8, 1.0, 2, 8.0),
        (0.5, 1.0, 3, 6.0),
        // who has none near it is seldom used, and so are those around it
        (0.8, 0.3, 6, most),
        (0.5, 0.2, 8, most),
    ] {
        let (mut state, begins) = (7u64, alone * density / (1.0 - density));
        let (mut runs, mut misses, mut strides) = (0.0, 0.0, 0.0);
        let (mut first, mut last) = (0, None);
        for i in 0..positions {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let far = last.is_some_and(|last| i - last > GAP_RANKS as i32 + 1);
            let begins = begins * if far { further } else { 1.0 };
            let chance = if last == Some(i - 1) { 1.0 - alone } else { begins };
            if ((state >> 33) as f64 / (1u64 << 31) as f64) < chance {
                misses += 1.0;
                let step = last.map(|last| i - last).filter(|&step| step <= gap + 1);
                match step.filter(|_| f64::from(i - first) < most) {
                    Some(step) => strides += f64::from(step),
                    None => (runs, first) = (runs + 1.0, i),
                }
                last = Some(i);
            }
        }
        let chances = Chances { alone, begins: [begins, begins * further] };
        let run = Run::new(chances, &even(gap as usize, most));
        // one that is cut short is taken to be cut after its mean steps; they are shorter
        let [close, apart] = if most < 1e6 { [0.04, 0.1] } else { [0.02; 2] };
        let (neurons, more_bytes) = (misses / runs, strides / runs * 8192.0);
        assert!((neurons / run.neurons - 1.0).abs() < close, "{neurons} against {run:?}");
        let [counted, told] = [more_bytes, run.more_bytes].map(|more| 8192.0 + more);
        assert!((counted / told - 1.0).abs() < apart, "{more_bytes} against {run:?}");
    }
}
