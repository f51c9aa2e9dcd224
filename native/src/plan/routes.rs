//! The routing table: finds the servable for a model name and a version or label. A new table replaces the old one as a
//! whole.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use super::faults::{self, BoxedFault, Names};
use super::near_names::did_you_mean;
use super::servable::Servable;

/// How a request names the version of a model: the latest version, a number or a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version<'a> {
    Latest,
    Number(i64),
    Label(&'a str),
}

impl Version<'_> {
    /// Returns the error for a request of this version of a model that does not exist.
    #[must_use]
    pub fn unknown(self, model: &str) -> BoxedFault {
        match self {
            Version::Latest => faults::unknown_model(model),
            Version::Number(number) => faults::unknown_version(model, number, ""),
            // TensorFlow Serving reports an unknown label even if the model is unknown.
            Version::Label(label) => faults::unknown_label(label, ""),
        }
    }
}

/// The versions and labels of one model.
#[derive(Default)]
pub struct ModelRoutes {
    /// Pairs of a version of the model and its servable, the latest first; None for a version that could not be compiled.
    pub versions: Vec<(i64, Option<Arc<Servable>>)>,
    /// Pairs of one of the model's labels, such as "stable", and the version number to which it points.
    pub labels: Vec<(String, i64)>,
    /// Why no version of the model can answer; "" if one can.
    pub problem: String,
    /// The fraction of requests, from 0 to 1, that are written to the model's request log.
    pub log_rate: f64,
}

impl ModelRoutes {
    /// Finds a version by its number; requests and changes of routes may meet thousands of versions.
    fn entry(&self, number: i64) -> Option<&(i64, Option<Arc<Servable>>)> {
        let found = self.versions.binary_search_by_key(&Reverse(number), |(number, _)| Reverse(*number));
        found.ok().map(|place| &self.versions[place])
    }

    fn servables(&self) -> impl Iterator<Item = &Arc<Servable>> {
        self.versions.iter().filter_map(|(_, servable)| servable.as_ref())
    }

    /// Returns the end of an error's text that names the versions which requests reach.
    #[cold]
    fn served(&self) -> String {
        match Names::listed(self.versions.iter().map(|(number, _)| number)) {
            names if names.is_empty() => String::new(),
            names => format!("; versions served: {names}"),
        }
    }

    /// Returns the end of an error's text that names the labels of the model, or the one that was meant.
    #[cold]
    fn near_labels(&self, label: &str) -> String {
        let names = Names::sorted(self.labels.iter().map(|(name, _)| name));
        match did_you_mean(label, self.labels.iter().map(|(name, _)| &**name)) {
            near if near.is_empty() && names.is_empty() => format!("; no version has a label{}", self.served()),
            near if near.is_empty() => format!("; labels: {names}"),
            near => near,
        }
    }

    /// Returns the servable of a version.
    ///
    /// # Errors
    /// The model has no such version or label, or the version can not be run.
    fn find(&self, model: &str, version: Version<'_>) -> Result<&Arc<Servable>, BoxedFault> {
        let wanted = match version {
            Version::Latest => match self.versions.first() {
                Some((newest, _)) => *newest,
                None => return Err(faults::not_ready(model, &self.problem).of_model(model)),
            },
            Version::Number(number) => number,
            Version::Label(label) => {
                let known = self.labels.iter().find(|(name, _)| name == label);
                known.ok_or_else(|| faults::unknown_label(label, &self.near_labels(label)).of_model(model))?.1
            }
        };
        match self.entry(wanted) {
            Some((_, servable)) => {
                servable.as_ref().ok_or_else(|| faults::version_not_run(model, wanted).of_model(model))
            }
            None => Err(faults::unknown_version(model, wanted, &self.served()).of_model(model)),
        }
    }
}

/// The routing table: the versions and labels of all models. A request uses one table from its start to its end.
#[derive(Default)]
pub struct Routes {
    // Models and their names are shared with the tables before and after, so that a change of one of a thousand models
    // copies nothing but pointers.
    models: HashMap<Arc<str>, Arc<ModelRoutes>>,
    most_logged: f64,
}

impl Routes {
    /// Returns a table that differs from this one in some models; sorts their versions, the latest first.
    ///
    /// `changed`: the new or changed models, by name. `removed`: names of models that no request may reach any more.
    #[must_use]
    pub fn with(&self, changed: HashMap<String, ModelRoutes>, removed: &[String]) -> Self {
        let mut models = self.models.clone();
        for name in removed {
            models.remove(name.as_str());
        }
        for (name, mut model) in changed {
            model.versions.sort_by_key(|(version, _)| Reverse(*version));
            models.insert(name.into(), Arc::new(model));
        }
        let most_logged = models.values().map(|model| model.log_rate).fold(0.0, f64::max);
        Routes { models, most_logged }
    }

    /// Returns the highest log rate of a model: mostly 0, and then no request looks for the rate of its model.
    #[must_use]
    pub fn most_logged(&self) -> f64 {
        self.most_logged
    }

    /// Returns the versions and labels of a configured model; None for any other name.
    #[must_use]
    pub fn model(&self, name: &str) -> Option<&ModelRoutes> {
        self.models.get(name).map(AsRef::as_ref)
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.models.keys().map(AsRef::as_ref)
    }

    /// Returns the servable of a model's version.
    ///
    /// # Errors
    /// There is no such model, version or label, or the version can not be run.
    pub fn find(&self, model: &str, version: Version<'_>) -> Result<&Arc<Servable>, BoxedFault> {
        if let Some(routes) = self.model(model) {
            return routes.find(model, version);
        }
        Err(version.unknown(model))
    }

    /// Iterates over the servables of a model whose versions, perhaps with other tables, another table of routes lacks.
    pub fn not_in<'r>(&'r self, other: &'r Routes, model: &str) -> impl Iterator<Item = &'r Arc<Servable>> {
        let (own, other) = (self.model(model), other.model(model));
        own.into_iter().flat_map(ModelRoutes::servables).filter(move |servable| {
            let known = other.and_then(|other| other.entry(servable.version())?.1.as_ref());
            !known.is_some_and(|known| known.is_same_version(servable))
        })
    }

    pub fn servables(&self) -> impl Iterator<Item = &Arc<Servable>> {
        self.models.values().flat_map(|model| model.servables())
    }
}
