//! The drawing: layers as rows, hosts below their edge switches.
//!
//! Slots are as wide as the longest text in their row, so nothing overlaps whatever the annotations say. All text stands
//! in boxes that bring their own light fill, and lines are mid-grey: legible on dark and on light pages alike.

use std::fmt::Write;

use super::Annotations;
use crate::cluster::Cluster;
use crate::network::{HostId, Network, Peer, Role, Switch, SwitchId};

/// Width of a character of the 11 px monospace font, rounded up.
const CHAR: usize = 7;
const LINE: usize = 14;
const GAP: usize = 10;
/// Space between rows, for the links.
const FAN: usize = 70;

/// An SVG drawing of the network: switches with `annotations`, links, hosts; memory servers and clients are marked.
///
/// A whole SVG document of fixed `viewBox`, without scripts, fonts or references to elsewhere, fit to be pasted into HTML.
/// Links that index packets may take are drawn stronger. Every box has its full name and address as a tooltip.
pub fn render_svg(cluster: &Cluster, annotations: &Annotations) -> String {
    Drawing::new(cluster, annotations).draw()
}

struct Box {
    x: usize,
    y: usize,
    w: usize,
    h: usize,
}

impl Box {
    fn centre(&self) -> usize {
        self.x + self.w / 2
    }
}

struct Drawing<'a> {
    cluster: &'a Cluster,
    tree: &'a Network,
    annotations: &'a Annotations,
    /// Boxes by [`SwitchId`].
    switches: Vec<Box>,
    /// Hosts of a switch.
    hosts: usize,
    host_columns: usize,
    host_w: usize,
    hosts_y: usize,
    width: usize,
}

impl<'a> Drawing<'a> {
    fn new(cluster: &'a Cluster, annotations: &'a Annotations) -> Self {
        let tree = cluster.tree();
        let hosts = tree
            .switches()
            .iter()
            .map(|s| tree.hosts().iter().filter(|h| h.edge == s.id).count())
            .max()
            .unwrap_or(0);
        // Few hosts stand side by side; many are stacked, or the drawing would be too wide to read.
        let host_columns = if hosts <= 2 || tree.switches().len() <= 2 && hosts <= 8 { hosts } else { 1 };
        let mut drawing = Self {
            cluster,
            tree,
            annotations,
            switches: Vec::new(),
            hosts,
            host_columns,
            host_w: 0,
            hosts_y: 0,
            width: 0,
        };
        let chars = |lines: &[String]| lines.iter().map(|line| line.chars().count()).max().unwrap_or(0);
        let host_chars = tree.hosts().iter().map(|h| chars(&drawing.host_label(h.id))).max().unwrap_or(0);
        drawing.host_w = host_chars * CHAR + 8;

        // Switches with hosts stand in one row.
        let row_of = |role: Role| if role.has_hosts() { Role::Edge } else { role };
        let row = |role| tree.switches().iter().filter(move |s| row_of(s.role) == role);
        let text_w = |role| row(role).map(|s| chars(&drawing.switch_label(s))).max().unwrap_or(0) * CHAR + 12;
        let row_h = |role| row(role).map(|s| drawing.switch_label(s).len()).max().unwrap_or(0) * LINE + 8;
        let (core_w, agg_w) = (text_w(Role::Core), text_w(Role::Aggregation));
        let edge_w = text_w(Role::Edge).max(host_columns * (drawing.host_w + 4));
        let pods = 1 + row(Role::Edge).map(|s| usize::from(s.pod)).max().unwrap_or(0);
        let aggs = row(Role::Aggregation).filter(|s| s.pod == 0).count();
        let edges = row(Role::Edge).filter(|s| s.pod == 0).count();
        let pod_w = (edges * (edge_w + GAP)).max(aggs * (agg_w + GAP)) + GAP;
        let cores = row(Role::Core).count();
        let width = (pods * pod_w).max(cores * (core_w + GAP) + GAP);
        let pod_w = width / pods;

        let below = |y: usize, role| if row(role).next().is_some() { y + row_h(role) + FAN } else { y };
        let agg_y = below(GAP, Role::Core);
        let edge_y = below(agg_y, Role::Aggregation);
        let mut boxes = Vec::with_capacity(tree.switches().len());
        for (position, s) in tree.switches().iter().enumerate() {
            let pod_x = usize::from(s.pod) * pod_w;
            // `count` boxes of width w, evenly in `room` from `from`: the middle of box `n`.
            let spread = |from: usize, room: usize, n: usize, count: usize, w: usize| {
                from + room * (2 * n + 1) / (2 * count) - w / 2
            };
            boxes.push(match s.role {
                Role::Core => Box {
                    x: spread(0, width, position, cores, core_w),
                    y: GAP,
                    w: core_w,
                    h: row_h(row_of(s.role)),
                },
                Role::Aggregation => {
                    let n = if aggs == 1 { 0 } else { usize::from(s.index) };
                    Box {
                        x: spread(pod_x, pod_w, n, aggs, agg_w),
                        y: agg_y,
                        w: agg_w,
                        h: row_h(row_of(s.role)),
                    }
                }
                Role::Edge | Role::Single | Role::Folded => {
                    let x = spread(pod_x, pod_w, usize::from(s.index), edges, edge_w);
                    Box { x, y: edge_y, w: edge_w, h: row_h(row_of(s.role)) }
                }
            });
        }
        let hosts_y = edge_y + row_h(Role::Edge) + if host_columns > 1 { FAN / 2 } else { GAP };
        drawing.switches = boxes;
        drawing.hosts_y = hosts_y;
        drawing.width = width;
        drawing
    }

    fn switch_box(&self, id: SwitchId) -> &Box {
        &self.switches[id.0 as usize]
    }

    fn host_h(&self) -> usize {
        if self.host_columns > 1 { 2 * LINE + 6 } else { LINE + 4 }
    }

    fn host_box(&self, id: HostId) -> Box {
        let host = self.tree.host(id);
        let edge = self.switch_box(self.tree.edge_of(id).id);
        let (n, count) = (usize::from(host.index), self.hosts);
        let (w, h) = (self.host_w, self.host_h());
        if self.host_columns > 1 {
            Box { x: edge.x + edge.w * (2 * n + 1) / (2 * count) - w / 2, y: self.hosts_y, w, h }
        } else {
            Box { x: edge.x + (edge.w - w.min(edge.w)) / 2, y: self.hosts_y + n * (h + 4), w, h }
        }
    }

    fn switch_label(&self, s: &Switch) -> Vec<String> {
        let name = if self.tree.is_root(s.id) { format!("{} (root)", s.name()) } else { s.name() };
        std::iter::once(name).chain(self.annotations.get(&s.id).into_iter().flatten().cloned()).collect()
    }

    /// `["0-0-0", "MS 0"]`, or one line where hosts are stacked.
    fn host_label(&self, id: HostId) -> Vec<String> {
        let host = self.tree.host(id);
        let short = host.numbers();
        let role = match self.role(id) {
            HostRole::Server(partition) => format!("MS {partition}"),
            HostRole::Client => "client".to_owned(),
            HostRole::Idle => String::new(),
        };
        match (self.host_columns > 1, role.is_empty()) {
            (true, _) => vec![short, role],
            (false, true) => vec![short],
            (false, false) => vec![role],
        }
    }

    fn role(&self, id: HostId) -> HostRole {
        if let Some(server) = self.cluster.servers().iter().find(|s| s.host == id) {
            HostRole::Server(server.partition)
        } else if self.cluster.clients().iter().any(|c| c.host == id) {
            HostRole::Client
        } else {
            HostRole::Idle
        }
    }

    fn draw(&self) -> String {
        let rows = self.hosts.div_ceil(self.host_columns);
        let legend_y = self.hosts_y + rows * (self.host_h() + 4) + GAP;
        let legend: usize = LEGEND.iter().map(|(text, _)| text.len() * CHAR + 12 + GAP).sum::<usize>() + GAP;
        let (width, height) = (self.width.max(legend), legend_y + LINE + 8 + GAP);
        let mut out = Svg(String::new());
        out.line(format_args!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
             font-family=\"ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace\" font-size=\"11\" role=\"img\">"
        ));
        let title = format!("{}, {} switches", self.tree.kind(), self.tree.switches().len());
        out.line(format_args!("<title>{}</title>", escape(&title)));
        self.links(&mut out);
        for s in self.tree.switches() {
            let fill = match s.role {
                Role::Core => CORE,
                Role::Aggregation => AGGREGATION,
                Role::Edge => EDGE,
                Role::Single | Role::Folded => SINGLE,
            };
            let endpoint = self.cluster.p4runtime(s.id);
            let tip = format!("{} {} P4Runtime {}#{}", s.name(), s.ip, endpoint.address, endpoint.device_id);
            out.labelled(self.switch_box(s.id), fill, &tip, &self.switch_label(s));
        }
        for host in self.tree.hosts() {
            let (fill, what) = match self.role(host.id) {
                HostRole::Server(partition) => (SERVER, format!("memory server of partition {partition}, ")),
                HostRole::Client => (CLIENT, "client, ".to_owned()),
                HostRole::Idle => (IDLE, String::new()),
            };
            let tip = format!("{}: {what}{} {}", host.name(), host.ip, host.mac);
            out.labelled(&self.host_box(host.id), fill, &tip, &self.host_label(host.id));
        }
        let mut x = GAP;
        for (text, fill) in LEGEND {
            let w = text.len() * CHAR + 12;
            out.labelled(&Box { x, y: legend_y, w, h: LINE + 8 }, fill, text, &[text.to_owned()]);
            x += w + GAP;
        }
        out.line(format_args!("</svg>"));
        out.0
    }

    fn links(&self, out: &mut Svg) {
        for link in self.tree.links() {
            let upper = self.switch_box(link.upper);
            let beside = match link.lower {
                Peer::Switch { switch, .. } => {
                    Some(self.switch_box(switch)).filter(|lower| lower.y == upper.y)
                }
                Peer::Host(_) => None,
            };
            if let Some(lower) = beside {
                let (x1, x2, y) = (upper.x + upper.w, lower.x, upper.y + upper.h / 2);
                out.line(format_args!(
                    "<line x1=\"{x1}\" y1=\"{y}\" x2=\"{x2}\" y2=\"{y}\" stroke=\"#808080\" stroke-width=\"1.8\"/>"
                ));
                continue;
            }
            let (x1, y1) = (upper.centre(), upper.y + upper.h);
            let (x2, y2, strong) = match link.lower {
                Peer::Switch { switch, .. } => {
                    let lower = self.switch_box(switch);
                    let strong = self.tree.carries_index(link.upper) && self.tree.carries_index(switch);
                    (lower.centre(), lower.y, strong)
                }
                Peer::Host(host) => {
                    let lower = self.host_box(host);
                    // Stacked hosts hang on one vertical line behind their boxes.
                    (lower.centre(), lower.y, !matches!(self.role(host), HostRole::Idle))
                }
            };
            let (colour, w) = if strong { ("#808080", "1.8") } else { ("#a8a8a8", "0.9") };
            out.line(format_args!(
                "<line x1=\"{x1}\" y1=\"{y1}\" x2=\"{x2}\" y2=\"{y2}\" stroke=\"{colour}\" stroke-width=\"{w}\"/>"
            ));
        }
    }
}

#[derive(Clone, Copy)]
enum HostRole {
    Server(u16),
    Client,
    Idle,
}

const CORE: &str = "#f4b183";
const AGGREGATION: &str = "#9dc3e6";
const EDGE: &str = "#a9d18e";
const SINGLE: &str = "#8fd3c8";
const SERVER: &str = "#ffd966";
const CLIENT: &str = "#cdb8ea";
const IDLE: &str = "#d9d9d9";
const LEGEND: [(&str, &str); 7] = [
    ("core", CORE),
    ("aggregation", AGGREGATION),
    ("edge", EDGE),
    ("single", SINGLE),
    ("memory server (MS partition)", SERVER),
    ("client", CLIENT),
    ("idle host", IDLE),
];

struct Svg(String);

impl Svg {
    fn line(&mut self, text: std::fmt::Arguments<'_>) {
        writeln!(self.0, "{text}").expect("writing to a String cannot fail");
    }

    fn labelled(&mut self, at: &Box, fill: &str, tip: &str, lines: &[String]) {
        let Box { x, y, w, h } = at;
        self.line(format_args!(
            "<g><title>{}</title><rect x=\"{x}\" y=\"{y}\" width=\"{w}\" height=\"{h}\" rx=\"4\" fill=\"{fill}\" stroke=\"#6b6b6b\"/>",
            escape(tip)
        ));
        let top = y + (h - (lines.len() * LINE).min(*h)) / 2;
        for (n, text) in lines.iter().enumerate().filter(|(_, text)| !text.is_empty()) {
            let (x, y, text) = (at.centre(), top + n * LINE + LINE - 3, escape(text));
            self.line(format_args!(
                "<text x=\"{x}\" y=\"{y}\" text-anchor=\"middle\" fill=\"#111111\">{text}</text>"
            ));
        }
        self.line(format_args!("</g>"));
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(k: u16, cores: &str) -> Cluster {
        let last = k / 2 - 1;
        let text = format!(
            "[network]\nk = {k}\ncores = \"{cores}\"\n[[memory_server]]\nhost = \"host-0-0-0\"\ngrpc = \"localhost:9\"\n\
             [[client]]\nhost = \"host-1-{last}-{last}\"\nname = \"a <b> & c\"\n"
        );
        Cluster::from_toml(&text).unwrap()
    }

    fn number(tag: &str, name: &str) -> usize {
        let from = tag.find(&format!(" {name}=\"")).unwrap() + name.len() + 3;
        tag[from..].split('"').next().unwrap().parse().unwrap()
    }

    fn check(svg: &str, boxes: usize) {
        let (w, h) = (number(svg, "width"), number(svg, "height"));
        let mut rects: Vec<Box> = Vec::new();
        for line in svg.lines() {
            if let Some(at) = line.find("<rect") {
                let tag = &line[at..];
                let [x, y, w, h] = ["x", "y", "width", "height"].map(|name| number(tag, name));
                rects.push(Box { x, y, w, h });
            } else if let Some(text) = line.strip_prefix("<text") {
                let text = text.split_once('>').unwrap().1.split_once('<').unwrap().0;
                let text = text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
                assert!(
                    text.chars().count() * CHAR <= rects.last().unwrap().w,
                    "{text:?} is wider than its box"
                );
            }
        }
        assert_eq!(rects.len(), boxes + LEGEND.len());
        for (n, a) in rects.iter().enumerate() {
            assert!(a.x + a.w <= w && a.y + a.h <= h, "box {n} leaves the drawing");
            for b in &rects[..n] {
                let apart = a.x + a.w <= b.x || b.x + b.w <= a.x || a.y + a.h <= b.y || b.y + b.h <= a.y;
                assert!(apart, "boxes overlap: {},{} and {},{}", a.x, a.y, b.x, b.y);
            }
        }
        for tag in ["g", "text", "title", "svg"] {
            let count = |what: String| svg.matches(&what).count();
            let opened = count(format!("<{tag}>")) + count(format!("<{tag} "));
            assert_eq!(opened, count(format!("</{tag}>")), "<{tag}> is balanced");
        }
    }

    #[test]
    fn nothing_overlaps_for_any_network_and_annotation() {
        let trees = [2, 4, 6, 8].into_iter().flat_map(|k| ["one", "all"].map(|cores| cluster(k, cores)));
        let others = Cluster::examples().map(|(_, text)| Cluster::from_toml(text).unwrap());
        for cluster in trees.chain(others) {
            let tree = cluster.tree();
            let boxes = tree.switches().len() + tree.hosts().len();
            check(&render_svg(&cluster, &Annotations::new()), boxes);
            let lines = vec!["fat root 600 ranges <&>".to_owned(), "A: 3600 nodes".to_owned(), String::new()];
            let all = tree.switches().iter().map(|s| (s.id, lines.clone())).collect();
            check(&render_svg(&cluster, &all), boxes);
        }
    }

    #[test]
    fn the_example_shows_roles_and_annotations() {
        let cluster = Cluster::example();
        let core = cluster.tree().roots()[0];
        let svg = render_svg(&cluster, &Annotations::from([(core, vec!["fat root 600 ranges".to_owned()])]));
        for part in [
            ">core-0 (root)<",
            ">fat root 600 ranges<",
            ">MS 3<",
            ">client<",
            "10.2.1.200",
            "127.0.0.1:9559#1",
        ] {
            assert!(svg.contains(part), "{part}");
        }
        assert_eq!(svg.matches("<line ").count(), 28);
    }
}
