//! What can go wrong with a request, each as a sentence with the fact and the remedy.

use plans::ContractError;

/// Why there is no answer. That no plan *exists* is not an error: see [`crate::explain::Infeasible`].
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// A file that cannot be read, believed or written.
    #[error(transparent)]
    Contract(#[from] ContractError),
    /// A limit that means nothing.
    #[error("{0}")]
    Request(String),
    /// A held level that the model does not have.
    #[error("there is no level `{name}` in model.toml; it has {known}")]
    Level {
        /// The name requested.
        name: String,
        /// Those there are.
        known: String,
    },
    /// A core that the device does not have.
    #[error("core {core} is not in device.toml; it has cores {known}")]
    Core {
        /// The core requested.
        core: u32,
        /// Those there are.
        known: String,
    },
    /// The solver stopped before it could prove anything.
    #[error(
        "Z3 stopped before an answer ({reason}) while deciding `{objective}`; plan with fewer choices, for example with --level or --cores"
    )]
    Unknown {
        /// The objective that was being decided.
        objective: String,
        /// Z3's reason.
        reason: String,
    },
    /// The finished plan does not keep what the solver promised: our mistake, never written.
    #[error(
        "the plan does not stand the check by the plain cost functions: {0}; this is a fault of the planner"
    )]
    Unverified(String),
    /// A chart or table that could not be made.
    #[error("cannot draw the frontier: {0}")]
    Drawing(String),
}
