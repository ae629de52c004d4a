//! Values as people read them, by the units that panels have.

/// The end of an axis that has room for a value: 1, 2 or 5 times a power of ten.
pub fn end(highest: f64) -> f64 {
    let power = 10_f64.powf(highest.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0];
    let step = steps.into_iter().find(|step| step * power >= highest);
    step.unwrap_or(10.0) * power
}

/// A value with its unit.
pub fn text(value: f64, unit: &str) -> String {
    match unit {
        "percentunit" => format!("{} %", short(value * 100.0)),
        "cps" => format!("{} c/s", short(value)),
        "s" if value == 0.0 => "0 s".to_owned(),
        "s" if value < 0.001 => format!("{} µs", short(value * 1_000_000.0)),
        "s" if value < 1.0 => format!("{} ms", short(value * 1000.0)),
        "s" => format!("{} s", short(value)),
        _ => short(value),
    }
}

/// At most three digits after the point, and none that say nothing.
fn short(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}
