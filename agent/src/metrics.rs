//! The agent's figures as metrics, in the OpenMetrics text format.

use std::{collections::BTreeMap, fmt};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric as _, text::encode},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge, info::Info},
    registry::Registry,
};

use crate::status::Figures;

/// The media type of [`text`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The metrics page.
///
/// # Errors
/// If a metric cannot be encoded.
pub fn text(figures: Figures) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    let version = Info::new(vec![("version", crate::VERSION)]);
    registry.register("sidetrack_build", "Version of the agent", version);
    registry.register_collector(Box::new(Page(figures)));
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

/// Figures that exist already are encoded as they are. Metrics that count by themselves would be a
/// second copy.
#[derive(Debug)]
struct Page(Figures);

impl Collector for Page {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let Figures {
            ready,
            pods,
            problems,
            connections,
            maps,
            repairs,
        } = &self.0;
        single(
            &mut encoder,
            "sidetrack_ready",
            "Whether the first full list of pods is applied",
            u64::from(*ready),
        )?;
        gauges(
            &mut encoder,
            "sidetrack_pods",
            "Pods of this node by state",
            "state",
            pods.iter().map(|(state, count)| (*state, *count)),
        )?;
        single(
            &mut encoder,
            "sidetrack_problems",
            "Problems that `sidetrack status` lists",
            *problems,
        )?;
        counters(
            &mut encoder,
            "sidetrack_connections",
            "Connections of enrolled pods by the rule that decided them",
            "rule",
            connections,
        )?;
        gauges(
            &mut encoder,
            "sidetrack_map_rows",
            "Rows in the kernel's maps",
            "map",
            maps.iter().map(|usage| (usage.map(), usage.rows)),
        )?;
        gauges(
            &mut encoder,
            "sidetrack_map_capacity",
            "Rows the kernel's maps can have",
            "map",
            maps.iter().map(|usage| (usage.map(), usage.capacity)),
        )?;
        counters(
            &mut encoder,
            "sidetrack_repairs",
            "Repairs of changes that others made, by what was changed",
            "what",
            repairs,
        )
    }
}

fn single(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    value: u64,
) -> Result<(), fmt::Error> {
    let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    ConstGauge::new(value).encode(metric)
}

fn gauges(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    label: &'static str,
    values: impl Iterator<Item = (&'static str, u64)>,
) -> Result<(), fmt::Error> {
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (of, value) in values {
        ConstGauge::new(value).encode(metric.encode_family(&[(label, of)])?)?;
    }
    Ok(())
}

/// The encoder appends `_total` to the name.
fn counters(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    label: &'static str,
    values: &BTreeMap<&'static str, u64>,
) -> Result<(), fmt::Error> {
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for (of, value) in values {
        ConstCounter::new(*value).encode(metric.encode_family(&[(label, *of)])?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::text;
    use crate::{kernel::usage::Limit, status::Figures};

    #[test]
    fn names_labels_and_values() {
        let text = text(Figures {
            ready: true,
            pods: [("enrolled", 2), ("waiting", 0)].into(),
            problems: 3,
            connections: [("out-all", 7)].into(),
            maps: vec![
                Limit {
                    map: "ROUTES",
                    then: "",
                    cure: "",
                }
                .usage((4, 8)),
            ],
            repairs: [("row", 1)].into(),
        })
        .unwrap();
        let values: Vec<&str> = text
            .lines()
            .filter(|line| !line.starts_with('#'))
            .filter(|line| !line.starts_with("sidetrack_build_info{version=\""))
            .collect();
        assert_eq!(
            values,
            [
                "sidetrack_ready 1",
                "sidetrack_pods{state=\"enrolled\"} 2",
                "sidetrack_pods{state=\"waiting\"} 0",
                "sidetrack_problems 3",
                "sidetrack_connections_total{rule=\"out-all\"} 7",
                "sidetrack_map_rows{map=\"ROUTES\"} 4",
                "sidetrack_map_capacity{map=\"ROUTES\"} 8",
                "sidetrack_repairs_total{what=\"row\"} 1",
            ]
        );
        assert!(
            text.contains("# TYPE sidetrack_connections counter\n"),
            "{text}"
        );
        assert!(text.contains("sidetrack_build_info{version=\""), "{text}");
        assert!(text.ends_with("# EOF\n"), "OpenMetrics requires it: {text}");
    }
}
