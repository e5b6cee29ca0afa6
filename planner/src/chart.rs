//! Speed against memory, as a picture.

use std::error::Error;
use std::ops::Range;

use plotters::prelude::{
    ChartBuilder, Circle, Color as _, DashedLineSeries, IntoDrawingArea as _, LineSeries, PathElement,
    RGBColor, SVGBackend, TRANSPARENT, Text, WHITE,
};

/// Colour of axes, grid lines and the mark of the model's size.
const GREY: RGBColor = RGBColor(150, 150, 150);

/// One line of the chart, by its name in the legend.
#[derive(Debug, Clone, PartialEq)]
pub struct Series<'a> {
    /// Name of the line in the legend.
    pub name: &'a str,
    /// Colour of line and points.
    pub colour: RGBColor,
    /// Points of the line, by rising memory.
    pub points: Vec<Speed>,
}

/// A speed at a memory limit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Speed {
    /// The limit.
    pub limit_bytes: u64,
    /// The speed.
    pub tokens_per_second: f64,
    /// Least and most of several measurements; the same as the speed where there is one.
    pub spread: [f64; 2],
}

impl Speed {
    /// A single figure.
    pub fn of(limit_bytes: u64, tokens_per_second: f64) -> Self {
        Self { limit_bytes, tokens_per_second, spread: [tokens_per_second; 2] }
    }
}

/// An SVG of lines through points, a vertical line for each spread, and a dashed line at the model's size.
///
/// # Errors
/// A failure of the drawing library.
pub fn speed_against_memory(title: &str, model_bytes: u64, series: &[Series<'_>]) -> Result<String, String> {
    let points = || series.iter().flat_map(|series| &series.points);
    let (unit, unit_bytes) = match points().map(|p| p.limit_bytes).max() {
        Some(most) if most >= 1 << 30 => ("GiB", f64::from(1 << 30)),
        _ => ("MiB", f64::from(1 << 20)),
    };
    let memory = |p: &Speed| p.limit_bytes as f64 / unit_bytes;
    let left = points().map(memory).fold(f64::INFINITY, f64::min);
    let right = points().map(memory).fold(0.0, f64::max);
    let margin = ((right - left) * 0.04).max(right * 0.01);
    let top = points().map(|p| p.spread[1]).fold(0.0, f64::max) * 1.05;
    let model = model_bytes as f64 / unit_bytes;
    let axes = Axes { unit, memory: &memory, model, across: left - margin..right + margin, top };
    let mut svg = String::new();
    draw(&mut svg, title, series, &axes).map_err(|error| error.to_string())?;
    Ok(svg)
}

/// Unit and ranges of the axes.
struct Axes<'a> {
    unit: &'a str,
    memory: &'a dyn Fn(&Speed) -> f64,
    /// Size of the model in that unit.
    model: f64,
    across: Range<f64>,
    top: f64,
}

fn draw(svg: &mut String, title: &str, series: &[Series<'_>], axes: &Axes<'_>) -> Result<(), Box<dyn Error>> {
    let area = SVGBackend::with_string(svg, (800, 480)).into_drawing_area();
    area.fill(&WHITE)?;
    let (head, body) = area.split_vertically(44);
    head.draw(&Text::new(title.to_owned(), (78, 16), ("sans-serif", 18)))?;
    let mut chart = ChartBuilder::on(&body)
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(66)
        .build_cartesian_2d(axes.across.clone(), 0.0..axes.top)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GREY.mix(0.25))
        .axis_style(GREY)
        .x_desc(format!("memory limit, {}", axes.unit))
        .y_desc("tokens per second")
        .draw()?;
    if axes.across.contains(&axes.model) {
        let mark = [(axes.model, 0.0), (axes.model, axes.top)];
        chart.draw_series(DashedLineSeries::new(mark, 5, 4, GREY.stroke_width(1)))?;
        let label = format!(" model, {:.1} {}", axes.model, axes.unit);
        chart.draw_series([Text::new(label, (axes.model, axes.top * 0.06), ("sans-serif", 13))])?;
    }
    let first = 780 - 110 * series.len() as i32;
    for (Series { name, colour, points }, x) in series.iter().zip((first..).step_by(110)) {
        head.draw(&Circle::new((x, 24), 4, colour.filled()))?;
        head.draw(&Text::new(name.to_string(), (x + 10, 17), ("sans-serif", 14)))?;
        let line = || points.iter().map(|p| ((axes.memory)(p), p.tokens_per_second));
        chart.draw_series(LineSeries::new(line(), colour.stroke_width(2)))?;
        chart.draw_series(line().map(|at| Circle::new(at, 3, colour.filled())))?;
        let spread = points.iter().filter(|p| p.spread[0] < p.spread[1]);
        chart.draw_series(spread.map(|p| {
            let ends = p.spread.map(|speed| ((axes.memory)(p), speed));
            PathElement::new(ends.to_vec(), colour)
        }))?;
    }
    area.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use plotters::prelude::{BLUE, RED};

    use super::*;

    #[test]
    fn every_point_is_drawn_and_a_spread_has_its_line() {
        let mut points = [(1, 2.0), (3, 4.0), (4, 6.0)].map(|(gib, speed)| Speed::of(gib << 30, speed));
        let circles = |points: &[Speed]| {
            let series = [("planned", BLUE), ("measured", RED)];
            let series = series.map(|(name, colour)| Series { name, colour, points: points.to_vec() });
            let svg = speed_against_memory("a title", 2 << 30, &series).unwrap();
            for text in ["a title", "planned", "measured", "memory limit, GiB", "model, 2.0 GiB"] {
                assert!(svg.contains(text), "{text}");
            }
            (svg.matches("<circle").count(), svg.matches("<polyline").count())
        };
        let (dots, lines) = circles(&points);
        assert_eq!(dots, 2 + 2 * 3, "the legend's, and each point of each");
        points[1].spread = [3.0, 5.0];
        // the axis may have grown by a line or two as well
        let (same_dots, more_lines) = circles(&points);
        assert!(same_dots == dots && more_lines >= lines + 2, "{lines} lines, then {more_lines}");
    }
}
