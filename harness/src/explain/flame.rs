//! A flame graph of the sites.

use inferno::flamegraph::{Options, from_lines};

use super::Site;
use super::folded::folded;

/// An SVG of the sites by value in bytes; `None` if there is nothing to draw.
pub fn flame_graph(sites: &[Site], title: &str, value: impl Fn(&Site) -> i64) -> Option<String> {
    let folded = folded(sites, value);
    if folded.is_empty() {
        return None;
    }
    let mut options = Options::default();
    options.title = format!("{title}: left behind");
    options.count_name = "bytes".to_owned();
    options.deterministic = true;
    let mut svg = Vec::new();
    from_lines(&mut options, folded.lines(), &mut svg).ok()?;
    String::from_utf8(svg).ok()
}

#[cfg(test)]
mod tests {
    use super::super::frames::sample::sites;
    use super::*;

    #[test]
    fn a_flame_graph_shows_each_function_and_the_sum() {
        let svg = flame_graph(&sites(), "a program", |site| site.grown.bytes).unwrap();
        assert!(svg.starts_with("<?xml") && svg.contains("prover::finish"));
        assert!(svg.contains("all (1,096 bytes"), "{svg}");
        assert_eq!(flame_graph(&sites(), "", |_| 0), None);
    }
}
