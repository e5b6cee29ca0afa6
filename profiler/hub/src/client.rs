//! Requests to the hub.

use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use ureq::config::RedirectAuthHeaders;
use ureq::http::{Response, Uri};
use ureq::{Agent, Body};

use crate::error::HubError;
use crate::name::Name;

/// The default hub.
const ENDPOINT: &str = "https://huggingface.co";
/// Bytes of a listing, at most: ten times what the largest repositories have.
const LISTING_MAX: u64 = 64 << 20;
/// Timeout of a connection and of silence.
const PATIENCE: Duration = Duration::from_secs(30);
/// Timeout of a whole listing.
const LISTING_TIME: Duration = Duration::from_secs(120);
/// Characters that are not escaped in the path of an address.
const PATH: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~').remove(b'/');

/// Who asks, and whom.
pub(crate) struct Client {
    endpoint: String,
    token: Option<String>,
    /// Whether there is a token that is not sent, because anybody between here and the endpoint could read it.
    withheld: bool,
    agent: Agent,
}

/// Without the token.
impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

impl Client {
    pub(crate) fn new(variable: &dyn Fn(&str) -> Option<String>) -> Result<Self, HubError> {
        let endpoint = variable("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT.to_owned());
        let wrong = |why: String| HubError::Environment { variable: "HF_ENDPOINT", why };
        let address =
            endpoint.parse::<Uri>().ok().filter(|it| matches!(it.scheme_str(), Some("https" | "http")));
        let Some(address) = address else {
            return Err(wrong(format!("is no address: give it one, for example {ENDPOINT}")));
        };
        if address.authority().is_some_and(|it| it.as_str().contains('@')) {
            return Err(wrong(
                "has a user or a password before its `@`: leave them out, and use HF_TOKEN".to_owned(),
            ));
        }
        let file = variable("HF_TOKEN_PATH")
            .map(PathBuf::from)
            .or_else(|| Some(crate::cache::home(variable)?.join("token")));
        let kept = || fs::read_to_string(file?).ok();
        let token = variable("HF_TOKEN").or_else(kept).map(|token| token.trim().to_owned());
        let token = token.filter(|token| !token.is_empty());
        let encrypted = address.scheme_str() == Some("https");
        let private = encrypted || address.host().is_some_and(is_loopback);
        Ok(Self {
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            withheld: token.is_some() && !private,
            token: token.filter(|_| private),
            agent: agent(encrypted, PATIENCE),
        })
    }

    /// The client with another timeout of silence.
    pub(crate) fn with_patience(self, patience: Duration) -> Self {
        let encrypted = self.agent.config().https_only();
        Self { agent: agent(encrypted, patience), ..self }
    }

    pub(crate) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// The address of a file of a repository at a commit.
    pub(crate) fn url(&self, name: &Name, commit: &str, path: &str) -> String {
        format!("{}/{name}/resolve/{commit}/{}", self.endpoint, utf8_percent_encode(path, PATH))
    }

    /// The answer to a request, of a text.
    pub(crate) fn text(&self, url: &str, name: &Name) -> Result<String, HubError> {
        let mut response = self.ask(url, name, 0, Some(LISTING_TIME))?;
        let body = response.body_mut().with_config().limit(LISTING_MAX);
        body.read_to_string().map_err(|error| unreachable(url, &error))
    }

    /// The answer to a request, from a byte on. Its body takes as long as it takes, while more of it comes.
    pub(crate) fn get(&self, url: &str, name: &Name, from: u64) -> Result<Response<Body>, HubError> {
        self.ask(url, name, from, None)
    }

    fn ask(
        &self,
        url: &str,
        name: &Name,
        from: u64,
        time: Option<Duration>,
    ) -> Result<Response<Body>, HubError> {
        let mut request = self.agent.get(url).config().timeout_recv_body(time).build();
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        if from > 0 {
            request = request.header("range", format!("bytes={from}-"));
        }
        let response = request.call().map_err(|error| unreachable(url, &error))?;
        let status = response.status().as_u16();
        if matches!(status, 200 | 206) {
            return Ok(response);
        }
        Err(HubError::Refused { url: url.to_owned(), status, remedy: self.remedy(status, name) })
    }

    /// Meaning and remedy of a refusal. The hub hides private repositories: without access they do not exist.
    fn remedy(&self, status: u16, name: &Name) -> String {
        let token = if self.token.is_some() {
            "the token in HF_TOKEN does not open it"
        } else if self.withheld {
            "the token in HF_TOKEN is sent over https alone, which HF_ENDPOINT is not"
        } else {
            "HF_TOKEN has no token"
        };
        match status {
            401 => format!(
                "there is no {name}, or it is private or has terms to accept, and {token}; mind its spelling, accept its terms at \
                 {}/{name}, and set HF_TOKEN to a token of your account",
                self.endpoint
            ),
            403 => format!(
                "{name} has terms to accept, and {token}; accept them at {}/{name}, and set HF_TOKEN to a token of that account",
                self.endpoint
            ),
            404 => format!(
                "there is no {name}, or it is private, and {token}; mind its spelling, of capitals, too"
            ),
            429 => "it was asked too often; wait a few minutes, or set HF_TOKEN to a token of your account"
                .to_owned(),
            _ => "it does not serve this now; try again later, the same command goes on".to_owned(),
        }
    }
}

/// An HTTP client; from an encrypted endpoint it follows redirects to encrypted addresses only.
fn agent(encrypted: bool, patience: Duration) -> Agent {
    Agent::config_builder()
        .http_status_as_error(false)
        .https_only(encrypted)
        .redirect_auth_headers(RedirectAuthHeaders::SameHost)
        .user_agent(concat!("flashplan/", env!("CARGO_PKG_VERSION")))
        .timeout_resolve(Some(PATIENCE))
        .timeout_connect(Some(PATIENCE))
        .timeout_recv_response(Some(PATIENCE))
        .timeout_per_read(Some(patience))
        .build()
        .into()
}

/// Whether a host is this machine.
fn is_loopback(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    host.eq_ignore_ascii_case("localhost") || address.is_ok_and(|it| it.is_loopback())
}

/// No answer.
pub(crate) fn unreachable(url: &str, cause: &dyn std::fmt::Display) -> HubError {
    HubError::Unreachable { url: url.to_owned(), cause: cause.to_string(), fetched: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_goes_over_https_or_to_this_machine() {
        for (endpoint, is_sent) in [
            ("https://mirror.example", true),
            ("http://127.0.0.1:8080", true),
            ("http://[::1]:8080/hub", true),
            ("http://localhost", true),
            ("http://mirror.example", false),
            ("http://localhost.example", false),
        ] {
            let variable = |name: &str| match name {
                "HF_ENDPOINT" => Some(endpoint.to_owned()),
                "HF_TOKEN" => Some("secret".to_owned()),
                _ => None,
            };
            let client = Client::new(&variable).unwrap();
            assert_eq!((client.token.is_some(), client.withheld), (is_sent, !is_sent), "{endpoint}");
            assert_eq!(client.agent.config().https_only(), endpoint.starts_with("https"), "{endpoint}");
            let remedy = client.remedy(401, &"hf:a/b".parse().unwrap());
            assert_eq!(remedy.contains("over https alone"), !is_sent, "{remedy}");
        }
    }
}
