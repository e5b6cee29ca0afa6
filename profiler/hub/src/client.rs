//! Requests to the hub.

use std::fs;
use std::net::IpAddr;
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use ureq::http::uri::Authority;
use ureq::http::{Response, Uri, header};
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
/// Redirects that one request follows, at most.
const REDIRECTS_MAX: usize = 10;
/// Characters that are not escaped in the path of an address.
const PATH: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~').remove(b'/');

/// A client of one hub.
pub(crate) struct Client {
    endpoint: String,
    /// Origin of the endpoint: the token is sent nowhere else.
    origin: Option<Origin>,
    token: Option<String>,
    /// Whether the token is withheld, because the connection is not encrypted.
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
            origin: Origin::of(&address),
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
        let mut response = self.ask(url, name, None, Some(LISTING_TIME))?;
        let body = response.body_mut().with_config().limit(LISTING_MAX);
        body.read_to_string().map_err(|error| unreachable(url, &error))
    }

    /// The answer to a request, from the byte `from`. Its body has no time limit while bytes come.
    pub(crate) fn get(&self, url: &str, name: &Name, from: u64) -> Result<Response<Body>, HubError> {
        let range = (from > 0).then(|| format!("bytes={from}-"));
        self.ask(url, name, range.as_deref(), None)
    }

    /// The answer to a request for some bytes of a file; a server that knows no ranges sends all of them.
    pub(crate) fn part(
        &self,
        url: &str,
        name: &Name,
        range: &Range<u64>,
    ) -> Result<Response<Body>, HubError> {
        let range = format!("bytes={}-{}", range.start, range.end.saturating_sub(1));
        self.ask(url, name, Some(&range), None)
    }

    fn ask(
        &self,
        url: &str,
        name: &Name,
        range: Option<&str>,
        time: Option<Duration>,
    ) -> Result<Response<Body>, HubError> {
        let wrong = |what: String| HubError::Answer { url: url.to_owned(), what };
        let mut address: Uri = url.parse().map_err(|_| wrong("it is no address".to_owned()))?;
        let mut redirects = 0;
        let response = loop {
            let response = self.ask_once(&address, range, time).map_err(|error| unreachable(url, &error))?;
            if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
                break response;
            }
            redirects += 1;
            if redirects > REDIRECTS_MAX {
                return Err(wrong(format!("it redirects more than {REDIRECTS_MAX} times")));
            }
            let location = response.headers().get(header::LOCATION).and_then(|value| value.to_str().ok());
            let next = location.and_then(|location| redirected(&address, location));
            address = next.ok_or_else(|| wrong(format!("it redirects to {:?}", location.unwrap_or(""))))?;
        };
        let status = response.status().as_u16();
        if matches!(status, 200 | 206) {
            return Ok(response);
        }
        Err(HubError::Refused { url: url.to_owned(), status, remedy: self.remedy(status, name) })
    }

    /// One request, without following a redirect. The token goes to the endpoint's origin alone.
    fn ask_once(
        &self,
        address: &Uri,
        range: Option<&str>,
        time: Option<Duration>,
    ) -> Result<Response<Body>, ureq::Error> {
        let mut request = self.agent.get(address).config().timeout_recv_body(time).build();
        if let Some(token) = &self.token
            && self.origin.is_some()
            && Origin::of(address) == self.origin
        {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        if let Some(range) = range {
            request = request.header(header::RANGE, range);
        }
        request.call()
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

/// Scheme, host and port of an address.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Origin {
    scheme: String,
    host: String,
    port: u16,
}

impl Origin {
    /// Origin of an address over HTTP or HTTPS.
    fn of(address: &Uri) -> Option<Self> {
        let scheme = address.scheme_str()?.to_ascii_lowercase();
        let usual = match &*scheme {
            "https" => 443,
            "http" => 80,
            _ => return None,
        };
        let host = address.host()?.to_ascii_lowercase();
        Some(Self { scheme, host, port: address.port_u16().unwrap_or(usual) })
    }
}

/// Address that a redirect from `address` leads to. `location` may leave out the scheme, the host or the path's beginning.
fn redirected(address: &Uri, location: &str) -> Option<Uri> {
    let location = location.split('#').next().unwrap_or_default();
    let (scheme, authority) = (address.scheme_str()?, address.authority().map(Authority::as_str)?);
    let absolute = location.split(['/', '?']).next().is_some_and(|start| start.ends_with(':'));
    let whole = if absolute {
        location.to_owned()
    } else if location.starts_with("//") {
        format!("{scheme}:{location}")
    } else if location.starts_with('/') {
        format!("{scheme}://{authority}{location}")
    } else if location.is_empty() || location.starts_with('?') {
        format!("{scheme}://{authority}{}{location}", address.path())
    } else {
        let folder = address.path().rsplit_once('/').map_or("", |(folder, _)| folder);
        format!("{scheme}://{authority}{folder}/{location}")
    };
    whole.parse().ok()
}

/// An HTTP client; from an encrypted endpoint it follows redirects to encrypted addresses only.
fn agent(encrypted: bool, patience: Duration) -> Agent {
    Agent::config_builder()
        .http_status_as_error(false)
        .https_only(encrypted)
        .max_redirects(0) // `ureq` would send the token to every port of the endpoint's host
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
    fn an_origin_is_scheme_host_and_port() {
        let origin = |address: &str| Origin::of(&address.parse().unwrap());
        for (one, other, same) in [
            ("https://hub.example/a", "https://HUB.example:443/b?c", true),
            ("http://hub.example", "http://hub.example:80", true),
            ("https://hub.example", "https://hub.example:8443", false),
            ("https://hub.example", "http://hub.example", false),
            ("https://hub.example", "http://hub.example:443", false),
            ("https://hub.example", "https://cdn.hub.example", false),
            ("http://127.0.0.1:1", "http://localhost:1", false),
        ] {
            assert_eq!(origin(one) == origin(other), same, "{one} {other}");
        }
        assert_eq!(origin("ftp://hub.example"), None);
    }

    #[test]
    fn a_redirect_may_leave_out_what_stays() {
        let from: Uri = "https://hub.example:1/a/b?c".parse().unwrap();
        for (location, leads_to) in [
            ("https://cdn.example/x?y=1#z", "https://cdn.example/x?y=1"),
            ("//cdn.example/x", "https://cdn.example/x"),
            ("/api/cache/x?y=http://z", "https://hub.example:1/api/cache/x?y=http://z"),
            ("x", "https://hub.example:1/a/x"),
            ("?x=1", "https://hub.example:1/a/b?x=1"),
        ] {
            assert_eq!(redirected(&from, location).unwrap().to_string(), leads_to, "{location}");
        }
        assert_eq!(redirected(&from, "https://"), None);
    }

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
