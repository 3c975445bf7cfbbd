//! Profiles as snapshots of insta.

use std::path::Path;

use insta::Snapshot;

use super::{Leeway, Profile};

/// Compares snapshots that are texts of profiles, with a leeway.
///
/// ```no_run
/// # let run = tidegate::Scenario::new("proving").run(|_round| ());
/// use tidegate::profile::{Comparator, Leeway, Metric};
///
/// let profile = run.profile().with_metrics(&[Metric::Blocks, Metric::Bytes]);
/// let leeway = Leeway::none().share(0.02).few(3.0);
/// insta::with_settings!({comparator => Comparator::boxed(leeway)}, {
///     insta::assert_snapshot!(profile.text());
/// });
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Comparator(pub Leeway);

impl Comparator {
    /// A comparator as insta's settings take it.
    pub fn boxed(leeway: Leeway) -> Box<dyn insta::Comparator> {
        Box::new(Self(leeway))
    }
}

impl insta::Comparator for Comparator {
    fn matches(&self, reference: &Snapshot, test: &Snapshot) -> bool {
        let read = |snapshot: &Snapshot| {
            let text = snapshot.as_text()?.to_string();
            Profile::parse(&text, Path::new("a snapshot")).ok()
        };
        match (read(reference), read(test)) {
            (Some(reference), Some(test)) => test.difference_from(&reference, self.0).is_none(),
            _ => false,
        }
    }

    fn dyn_clone(&self) -> Box<dyn insta::Comparator> {
        Box::new(*self)
    }
}
