//! The picture of the path of a connection: what the README shows first.

use std::fmt::Write as _;

const WIDTH: u32 = 950;
const HEIGHT: u32 = 430;

/// The left and right edge of the pod.
const POD: (u32, u32) = (150, 740);

const HEAD: &str = r##"<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto"><path d="M0 0 8 4 0 8z" fill="#334155"/></marker></defs>
<rect width="100%" height="100%" rx="8" fill="#ffffff"/>
"##;

/// Pixels from the left and from the top.
type Point = (u32, u32);

/// A box with a title and lines below it.
struct Node {
    at: Point,
    size: (u32, u32),
    fill: &'static str,
    title: &'static str,
    lines: &'static [&'static str],
}

const NODES: [Node; 7] = [
    Node {
        at: (170, 80),
        size: (110, 60),
        fill: "#dbeafe",
        title: "app",
        lines: &["connect(VIP:80)"],
    },
    Node {
        at: (330, 70),
        size: (200, 80),
        fill: "#fef3c7",
        title: "cgroup/connect4, 6",
        lines: &["pod, owner, route, rules", "rewrites to 127.94.7.21:15001"],
    },
    Node {
        at: (590, 70),
        size: (130, 310),
        fill: "#dcfce7",
        title: "sidecar (Envoy)",
        lines: &["15001", "SO_ORIGINAL_DST", "= VIP:80"],
    },
    Node {
        at: (820, 80),
        size: (110, 60),
        fill: "#f1f5f9",
        title: "service",
        lines: &["VIP:80"],
    },
    Node {
        at: (20, 300),
        size: (110, 60),
        fill: "#f1f5f9",
        title: "client",
        lines: &["SYN podIP:80"],
    },
    Node {
        at: (330, 290),
        size: (200, 80),
        fill: "#fef3c7",
        title: "sk_lookup",
        lines: &["rules for ports, interfaces", "assigns 15006's listener"],
    },
    Node {
        at: (170, 190),
        size: (110, 60),
        fill: "#dbeafe",
        title: "app",
        lines: &["listens on :80"],
    },
];

/// An arrow with a text above its middle.
const ARROWS: [(Point, Point, &str); 6] = [
    ((280, 110), (328, 110), ""),
    ((530, 110), (588, 110), "over lo"),
    ((720, 110), (818, 110), "mTLS"),
    ((130, 330), (328, 330), "no packet is changed"),
    ((530, 330), (588, 330), "15006"),
    ((588, 220), (282, 220), "from 127.0.0.6: untouched"),
];

/// Draws it.
pub fn picture() -> String {
    let mut svg = format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="13">
<title>The path of a connection</title>
"#
    );
    svg.push_str(HEAD);
    let (left, right) = POD;
    let _ = writeln!(
        svg,
        r##"<rect x="{left}" y="40" width="{}" height="360" rx="10" fill="none" stroke="#94a3b8" stroke-dasharray="6 4"/>
<text x="{}" y="30" fill="#334155">pod: no iptables, no connection tracking, no privileges</text>"##,
        right - left,
        left + 10
    );
    for node in &NODES {
        node.draw(&mut svg);
    }
    for (from, to, text) in &ARROWS {
        arrow(&mut svg, *from, *to, text);
    }
    svg.push_str("</svg>\n");
    svg
}

impl Node {
    fn draw(&self, svg: &mut String) {
        let ((x, y), (width, height), fill) = (self.at, self.size, self.fill);
        let middle = x + width / 2;
        let _ = writeln!(
            svg,
            r##"<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" fill="{fill}" stroke="#334155"/>
<text x="{middle}" y="{}" text-anchor="middle" font-weight="bold" fill="#0f172a">{}</text>"##,
            y + 22,
            self.title
        );
        for (line, text) in (0..).zip(self.lines) {
            let _ = writeln!(
                svg,
                r##"<text x="{middle}" y="{}" text-anchor="middle" font-size="11" fill="#334155">{text}</text>"##,
                y + 42 + line * 18
            );
        }
    }
}

fn arrow(svg: &mut String, from: Point, to: Point, text: &str) {
    let middle = u32::midpoint(from.0, to.0);
    let _ = writeln!(
        svg,
        r##"<path d="M{} {}L{} {}" stroke="#334155" fill="none" marker-end="url(#tip)"/>
<text x="{middle}" y="{}" text-anchor="middle" font-size="11" fill="#334155">{text}</text>"##,
        from.0,
        from.1,
        to.0,
        to.1,
        from.1 - 8
    );
}

#[cfg(test)]
mod tests;
