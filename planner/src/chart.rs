//! Speed against memory, as a picture.

use std::error::Error;
use std::ops::Range;

use plotters::prelude::{
    ChartBuilder, Circle, Color as _, DashedLineSeries, IntoDrawingArea as _, LineSeries, RGBColor,
    SVGBackend, TRANSPARENT, Text, WHITE,
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
    /// Memory limits in bytes, rising, and tokens per second.
    pub points: Vec<(u64, f64)>,
}

/// An SVG of lines through points and a dashed line at the model's size.
///
/// # Errors
/// A failure of the drawing library.
pub fn speed_against_memory(title: &str, model_bytes: u64, series: &[Series<'_>]) -> Result<String, String> {
    let points = || series.iter().flat_map(|series| &series.points);
    let (unit, unit_bytes) = match points().map(|&(limit, _)| limit).max() {
        Some(most) if most >= 1 << 30 => ("GiB", f64::from(1 << 30)),
        _ => ("MiB", f64::from(1 << 20)),
    };
    let memory = |&(limit, _): &(u64, f64)| limit as f64 / unit_bytes;
    let left = points().map(memory).fold(f64::INFINITY, f64::min);
    let right = points().map(memory).fold(0.0, f64::max);
    let margin = ((right - left) * 0.04).max(right * 0.01);
    let top = points().map(|&(_, speed)| speed).fold(0.0, f64::max) * 1.05;
    let model = model_bytes as f64 / unit_bytes;
    let axes = Axes { unit, memory: &memory, model, across: left - margin..right + margin, top };
    let mut svg = String::new();
    draw(&mut svg, title, series, &axes).map_err(|error| error.to_string())?;
    Ok(svg)
}

/// Unit and ranges of the axes.
struct Axes<'a> {
    unit: &'a str,
    memory: &'a dyn Fn(&(u64, f64)) -> f64,
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
        let line = || points.iter().map(|p| ((axes.memory)(p), p.1));
        chart.draw_series(LineSeries::new(line(), colour.stroke_width(2)))?;
        chart.draw_series(line().map(|at| Circle::new(at, 3, colour.filled())))?;
    }
    area.present()?;
    Ok(())
}

#[cfg(test)]
mod tests;
