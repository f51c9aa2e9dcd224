//! The routing table: finds the servable for a model name and a version or label. A new table replaces the old one as a
//! whole.

use std::collections::HashMap;
use std::sync::Arc;

use super::servable::Servable;

/// How a request names the version of a model: the latest version, a number or a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version<'a> {
    /// The latest version.
    Latest,
    /// The model version with this number.
    Number(i64),
    /// The model version to which this label points.
    Label(&'a str),
}

/// The versions and labels of one model.
#[derive(Default)]
pub struct ModelRoutes {
    /// Pairs of a version of the model and its servable; None for a version that only the reference server can run.
    pub versions: Vec<(i64, Option<Arc<Servable>>)>,
    /// Pairs of one of the model's labels, such as "stable", and the version number to which it points.
    pub labels: Vec<(String, i64)>,
    /// The fraction of requests, from 0 to 1, that are written to the model's request log.
    pub log_rate: f64,
}

impl ModelRoutes {
    /// Returns the servable of a version. None if the model has no such version or label, or if only the reference
    /// server can run it.
    #[must_use]
    pub fn find(&self, version: Version<'_>) -> Option<&Arc<Servable>> {
        let wanted = match version {
            Version::Latest => return self.versions.first()?.1.as_ref(),
            Version::Number(number) => number,
            Version::Label(label) => self.labels.iter().find(|(name, _)| name == label)?.1,
        };
        self.versions.iter().find(|(number, _)| *number == wanted)?.1.as_ref()
    }
}

/// The routing table: the versions and labels of all models. A request uses one table from its start to its end.
#[derive(Default)]
pub struct Routes {
    models: HashMap<String, ModelRoutes>,
}

impl Routes {
    /// Builds the table of the configured models, by name; sorts their versions, the latest first.
    #[must_use]
    pub fn new(mut models: HashMap<String, ModelRoutes>) -> Self {
        for model in models.values_mut() {
            model.versions.sort_by_key(|(version, _)| std::cmp::Reverse(*version));
        }
        Routes { models }
    }

    /// Returns the versions and labels of a configured model; None for any other name.
    #[must_use]
    pub fn model(&self, name: &str) -> Option<&ModelRoutes> {
        self.models.get(name)
    }

    /// Says whether the table has this servable's version, perhaps with other tables.
    #[must_use]
    pub fn has_version(&self, servable: &Servable) -> bool {
        let model = self.model(servable.model());
        let found = model.and_then(|model| model.find(Version::Number(servable.version())));
        found.is_some_and(|found| found.is_same_version(servable))
    }

    /// Iterates over every published servable of every model.
    pub fn servables(&self) -> impl Iterator<Item = &Arc<Servable>> {
        self.models.values().flat_map(|model| model.versions.iter().filter_map(|(_, servable)| servable.as_ref()))
    }
}
