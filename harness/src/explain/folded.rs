//! Folded stacks: one line per site, outermost frame first, then its value.

use super::Site;

/// The sites as folded stacks, with the layer and the phase as outermost frames.
/// Sites whose value is not above zero are left out.
pub fn folded(sites: &[Site], value: impl Fn(&Site) -> i64) -> String {
    use std::fmt::Write as _;
    let mut out = String::new();
    for site in sites.iter().filter(|site| value(site) > 0) {
        let _ = write!(out, "{};{}", part(site.layer.name()), part(&site.phase));
        for frame in site.frames_of_workload().iter().rev() {
            let _ = write!(out, ";{}", part(&frame.function));
        }
        let _ = writeln!(out, " {}", value(site));
    }
    out
}

/// A name that can be a part of a line: `;` parts frames, line ends part stacks.
fn part(name: &str) -> String {
    name.replace(';', ",").replace(['\n', '\r'], " ")
}

#[cfg(test)]
mod tests {
    use super::super::frames::sample::sites;
    use super::*;

    #[test]
    fn folded_stacks_come_back_as_they_were() {
        let sites = sites();
        let text = folded(&sites, |site| site.grown.bytes);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2);
        for (line, site) in lines.iter().zip(&sites) {
            let (stack, value) = line.rsplit_once(' ').unwrap();
            assert_eq!(value.parse::<i64>().unwrap(), site.grown.bytes);
            let mut names = stack.split(';');
            assert_eq!(names.next(), Some(site.layer.name()));
            assert_eq!(names.next(), Some(site.phase.as_str()));
            let functions: Vec<&str> = names.rev().collect();
            let expected: Vec<String> = site
                .frames
                .iter()
                .map(|frame| part(&frame.function))
                .collect();
            assert_eq!(functions, expected);
        }
    }
}
