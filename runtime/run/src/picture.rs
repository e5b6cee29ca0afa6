//! Where the time of each token went, as a picture: stacked bars, and the floor across them.

use std::error::Error;
use std::ops::Range;

use plans::plan::Floor as Rates;
use plotters::prelude::{
    BLACK, ChartBuilder, Color as _, IntoDrawingArea as _, PathElement, RGBColor, Rectangle, SVGBackend,
    Text, WHITE,
};

use super::figures::sums;
use super::floor::Floor;
use super::session::Step;
use flashplan::Counters;
use flashplan::internals::counters::{Stage, detail};

/// Bars at most; where there are more tokens, a bar is the mean of neighbours.
const BARS: usize = 200;
/// Parts of a bar: the stages, and I/O wait apart from the rest of the demand stage.
const PARTS: usize = Stage::ALL.len() + 1;

/// A part's name and colour, from the bottom of a bar upwards.
const LEGEND: [(&str, RGBColor); PARTS] = [
    ("attention", RGBColor(31, 119, 180)),
    ("select", RGBColor(23, 190, 207)),
    ("look-ahead", RGBColor(148, 103, 189)),
    ("gate-up", RGBColor(44, 160, 44)),
    ("demand reads", RGBColor(188, 189, 34)),
    ("I/O wait", RGBColor(214, 39, 40)),
    ("down", RGBColor(152, 223, 138)),
    ("insert", RGBColor(255, 127, 14)),
    ("head", RGBColor(127, 127, 127)),
];

/// Milliseconds of a mean token by part, in the order of [`LEGEND`].
type Parts = [f64; PARTS];

/// A mean token of some neighbours.
#[derive(Debug, Clone, PartialEq)]
struct Bar {
    /// Which tokens, counted from the first that was decoded.
    tokens: Range<usize>,
    parts: Parts,
    floor_ms: Option<f64>,
}

/// The picture as an SVG file's text.
///
/// # Errors
/// What the drawing refuses.
pub(super) fn picture(steps: &[Step], rates: Option<&Rates>, title: &str) -> Result<String, String> {
    let mut svg = String::new();
    draw(&mut svg, steps, rates, title).map_err(|error| error.to_string())?;
    Ok(svg)
}

fn bars(steps: &[Step], rates: Option<&Rates>) -> Vec<Bar> {
    let together = steps.len().div_ceil(BARS).max(1);
    let chunks = steps.chunks(together).enumerate();
    chunks.map(|(i, steps)| bar(i * together, steps, rates)).collect()
}

fn bar(first: usize, steps: &[Step], rates: Option<&Rates>) -> Bar {
    let (time, counters) = sums(steps);
    let count = steps.len() as f64;
    let floor = |rates| Floor::new(rates, &counters, count, time.as_secs_f64()).floor_seconds * 1e3;
    let parts = parts(&counters).map(|ms| ms / count);
    Bar { tokens: first..first + steps.len(), parts, floor_ms: rates.map(floor) }
}

fn parts(counters: &Counters) -> Parts {
    let ms = |stage| detail(counters).times.of(stage).as_secs_f64() * 1e3;
    let waited = (counters.waited.as_secs_f64() * 1e3).min(ms(Stage::Demand));
    let [attention, select, look_ahead, gate_up, demand, down, insert, head] = Stage::ALL.map(ms);
    [attention, select, look_ahead, gate_up, demand - waited, waited, down, insert, head]
}

/// Where the axis ends, and whether bars go on beyond: one token in twenty may, so that it does not flatten the others.
fn top(bars: &[Bar]) -> (f64, bool) {
    let heights = bars.iter().map(|bar| bar.parts.iter().sum::<f64>().max(bar.floor_ms.unwrap_or(0.0)));
    let mut heights: Vec<f64> = heights.collect();
    heights.sort_unstable_by(f64::total_cmp);
    let Some(&highest) = heights.last() else { return (1.0, false) };
    let (all, most) = (highest * 1.05, heights[(heights.len() - 1) * 19 / 20] * 1.5);
    (all.min(most).max(f64::MIN_POSITIVE), most < highest)
}

fn draw(svg: &mut String, steps: &[Step], rates: Option<&Rates>, title: &str) -> Result<(), Box<dyn Error>> {
    let bars = bars(steps, rates);
    let (top, cut) = top(&bars);
    let area = SVGBackend::with_string(svg, (960, 480)).into_drawing_area();
    area.fill(&WHITE)?;
    let (head, body) = area.split_vertically(44);
    head.draw(&Text::new(title.to_owned(), (78, 16), ("sans-serif", 18)))?;
    let (left, right) = body.split_horizontally(720);
    let mut chart = ChartBuilder::on(&left)
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(66)
        .build_cartesian_2d(0.0..steps.len().max(1) as f64, 0.0..top)?;
    let each = match steps.len().div_ceil(BARS) {
        0 | 1 => "decoded tokens".to_owned(),
        many => format!("decoded tokens, each bar the mean of {many}"),
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .max_light_lines(1)
        .x_label_formatter(&|token| format!("{token:.0}"))
        .y_label_formatter(&|ms| if top < 10.0 { format!("{ms:.1}") } else { format!("{ms:.0}") })
        .x_desc(each)
        .y_desc(if cut { "milliseconds; the highest bars are cut" } else { "milliseconds" })
        .draw()?;
    for (part, (_, colour)) in LEGEND.iter().enumerate() {
        chart.draw_series(bars.iter().map(|bar| {
            let below: f64 = bar.parts[..part].iter().sum();
            let (from, to) = (bar.tokens.start as f64, bar.tokens.end as f64);
            let ends = [below, below + bar.parts[part]].map(|ms| ms.min(top));
            Rectangle::new([(from, ends[0]), (to, ends[1])], colour.filled())
        }))?;
    }
    let floor = bars.iter().filter_map(|bar| {
        let ends = [bar.tokens.start, bar.tokens.end];
        bar.floor_ms.map(|ms| ends.map(|token| (token as f64, ms.min(top))))
    });
    chart.draw_series([PathElement::new(floor.flatten().collect::<Vec<_>>(), BLACK.stroke_width(2))])?;

    let font = ("sans-serif", 14);
    let line = |at: i32, mark: RGBColor, text: String| {
        let y = 20 + at * 24;
        right.draw(&Rectangle::new([(8, y), (22, y + 12)], mark.filled()))?;
        right.draw(&Text::new(text, (30, y - 1), font))
    };
    if !steps.is_empty() {
        // as in the bars: the last part on top
        let mean = bar(0, steps, rates);
        let all: f64 = mean.parts.iter().sum();
        for (at, ((name, colour), ms)) in (0..).zip(LEGEND.iter().zip(mean.parts).rev()) {
            line(at, *colour, format!("{name} {ms:.2} ms, {:.0} %", 100.0 * ms / all))?;
        }
        line(PARTS as i32 + 1, WHITE, format!("mean of all {all:.2} ms"))?;
        if let Some(ms) = mean.floor_ms {
            line(PARTS as i32 + 2, BLACK, format!("floor {ms:.2} ms"))?;
        }
    }
    area.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use flashplan::internals::counters::{StageTimes, detail_mut};

    fn step(position: usize, rows: u64) -> Step {
        let times = StageTimes::from(Stage::ALL.map(|stage| Duration::from_micros(50 + stage as u64)));
        let waited = times.of(Stage::Demand) / 2;
        let time = Stage::ALL.iter().map(|&stage| times.of(stage)).sum();
        let mut counters = Counters::default();
        counters.waited = waited;
        let detail = detail_mut(&mut counters);
        (detail.times, detail.traffic.rows) = (times, rows);
        Step { position, tokens: 1, drafted: 0, time, counters }
    }

    const RATES: Rates = Rates {
        stream_bytes_per_second: 1e6,
        gather_bytes_per_second: 1e6,
        reads_per_second: None,
        read_bytes: 4096,
    };

    #[test]
    fn the_parts_of_a_bar_are_all_of_its_time() {
        let steps: Vec<Step> = (0..2 * BARS + 1).map(|i| step(i, 1000 * (i as u64 % 3))).collect();
        let bars = bars(&steps, Some(&RATES));
        assert_eq!(bars.len(), (2 * BARS + 1).div_ceil(3));
        assert_eq!((bars[0].tokens.clone(), bars[1].tokens.clone()), (0..3, 3..6));
        for bar in &bars {
            let took: Duration = steps[bar.tokens.clone()].iter().map(|step| step.time).sum();
            let took = took.as_secs_f64() * 1e3 / bar.tokens.len() as f64;
            assert!((bar.parts.iter().sum::<f64>() - took).abs() < 1e-9, "{bar:?} {took}");
            assert!(bar.parts.iter().all(|&ms| ms > 0.0), "{bar:?}");
        }
        // 0, 1000 and 2000 bytes at a million a second
        assert_eq!(bars[0].floor_ms, Some(1.0));
    }

    #[test]
    fn a_rare_high_bar_is_cut_and_a_frequent_one_is_not() {
        let of = |ms: f64| {
            let mut parts = [0.0; PARTS];
            parts[0] = ms;
            Bar { tokens: 0..1, parts, floor_ms: None }
        };
        let mut bars: Vec<Bar> = (0..40).map(|_| of(10.0)).collect();
        assert_eq!(top(&bars), (10.5, false));
        bars[7] = of(100.0);
        assert_eq!(top(&bars), (15.0, true));
        bars[20..24].fill(of(100.0));
        assert_eq!(top(&bars), (105.0, false));
        assert_eq!(top(&[]), (1.0, false));
    }

    #[test]
    fn every_part_is_named_and_drawn() {
        let steps = [step(4, 0), step(5, 0)];
        let svg = picture(&steps, Some(&RATES), "a title").unwrap();
        for (name, colour) in LEGEND {
            assert!(svg.contains(name), "{name}");
            let RGBColor(r, g, b) = colour;
            let drawn = svg.matches(&format!("#{r:02X}{g:02X}{b:02X}")).count();
            assert!(drawn >= 3, "two bars and the legend: {name} {drawn}");
        }
        for text in ["a title", "milliseconds", "decoded tokens", "floor"] {
            assert!(svg.contains(text), "{text}");
        }
        assert!(!picture(&steps, None, "").unwrap().contains("floor"), "no rates, no floor");
        assert!(picture(&[], Some(&RATES), "").unwrap().contains("milliseconds"));
    }
}
