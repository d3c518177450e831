//! HTTP: routes, tenants, and the answers to requests that fail.

mod completions;
mod guard;
mod openai;
mod refusal;

use crate::agent;
use crate::config::{ANONYMOUS, Config};
use crate::engine::Engines;
use crate::figures::Figures;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, Request, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
pub(crate) use refusal::Failure;
use serde_json::json;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::SystemTime;
use weirpool::Tag;
use weirpool_dashboard::Hosts;

/// State that all requests share.
pub(crate) struct App {
    pub(crate) engines: Engines,
    pub(crate) figures: Figures,
    pub(crate) config: Config,
    pub(crate) tenants: Tenants,
    /// The names under which the server is reached.
    pub(crate) hosts: Hosts,
    /// The number of the next answer.
    pub(crate) next: AtomicU64,
}

impl App {
    /// Returns what load balancers are told of the server.
    pub(crate) fn state(&self) -> agent::State {
        let all = self.engines.all();
        let is_lost = all.iter().any(|engine| engine.lost_worker().is_some());
        let mut pools = self.engines.pools();
        if is_lost || pools.any(|pool| pool.inspect().health().fault.is_some()) {
            return agent::State::Down;
        }
        match self.engines.are_serving() {
            true => agent::State::Up(self.engines.in_use()),
            false => agent::State::Drain,
        }
    }
}

/// The tenants by their keys.
pub(crate) struct Tenants {
    by_key: HashMap<String, Tag>,
    /// The tenant of requests without a key, if none is needed.
    anonymous: Option<Tag>,
}

impl Tenants {
    /// Sets quotas and weights in the pool.
    pub(crate) fn new(config: &Config, engines: &Engines) -> Self {
        let mut by_key = HashMap::new();
        for tenant in &config.tenants {
            let tag = Tag::new(&tenant.name);
            for pool in engines.pools() {
                let account = pool.tag(tag);
                account.set_limit(tenant.quota.map(|quota| quota.as_u64()));
                account.set_weight(tenant.weight);
                account.set_queue_limit(tenant.queue.map(Into::into));
            }
            by_key.insert(tenant.key.clone(), tag);
        }
        let anonymous = by_key.is_empty().then(|| Tag::new(ANONYMOUS));
        Self { by_key, anonymous }
    }

    /// Returns the tenant of a request. Only configured names become tags, whatever clients send.
    fn of(&self, headers: &HeaderMap) -> Result<Tag, Failure> {
        if let Some(anonymous) = self.anonymous {
            return Ok(anonymous);
        }
        let value = headers.get(header::AUTHORIZATION);
        let value = value.and_then(|value| value.to_str().ok()).unwrap_or("");
        let key = value.strip_prefix("Bearer ").map(str::trim);
        let tenant = key.and_then(|key| self.by_key.get(key));
        tenant.copied().ok_or_else(|| {
            let message = "the header Authorization has no key of a tenant; send `Bearer <key>`";
            Failure::new(StatusCode::UNAUTHORIZED, message)
        })
    }
}

/// Returns the routes of clients, and those of operators if they have an address of their own.
pub(crate) fn routers(app: &Arc<App>) -> (Router, Option<Router>) {
    let counted = from_fn_with_state(app.clone(), count);
    let clients = Router::new()
        .route(
            "/v1/completions",
            post(completions::complete).layer(counted),
        )
        .route("/v1/models", get(models))
        .route("/healthz", get(health))
        .route("/readyz", get(ready));
    let mut operators = Router::new().route("/metrics", get(figures));
    for (index, dashboard) in app.figures.dashboards().enumerate() {
        let path = match index {
            0 => "/".to_owned(),
            _ => format!("/{index}"),
        };
        operators = operators.route_service(&path, dashboard);
    }
    let operators = operators.route_layer(from_fn_with_state(app.clone(), guard::for_operators));
    match app.config.operators {
        None => (whole(app, clients.merge(operators)), None),
        Some(_) => (whole(app, clients), Some(whole(app, operators))),
    }
}

fn whole(app: &Arc<App>, routes: Router<Arc<App>>) -> Router {
    routes
        .fallback(async || Failure::new(StatusCode::NOT_FOUND, "there is no such page"))
        .method_not_allowed_fallback(async || {
            Failure::new(
                StatusCode::METHOD_NOT_ALLOWED,
                "this page does not answer this method",
            )
        })
        .layer(from_fn_with_state(app.clone(), guard::guard))
        .with_state(app.clone())
}

/// Counts requests by the status of their answers, and those whose clients disconnected before.
async fn count(
    State(app): State<Arc<App>>,
    request: Request<axum::body::Body>,
    next: Next,
) -> Response {
    // Dropped without an answer if the client has gone.
    let mut unanswered = Unanswered(Some(app));
    let mut response = next.run(request).await;
    if let Some(app) = unanswered.0.take() {
        let rate = app.figures.answered(response.status().as_str());
        if app.config.load_report && response.status().is_success() {
            let report = agent::report(app.engines.in_use(), rate);
            let report = HeaderValue::from_str(&report).expect("names and numbers");
            response.headers_mut().insert(agent::LOAD, report);
        }
    }
    response
}

/// A request that has no answer yet.
struct Unanswered(Option<Arc<App>>);

impl Drop for Unanswered {
    fn drop(&mut self) {
        if let Some(app) = self.0.take() {
            app.figures.answered("none");
        }
    }
}

async fn models(State(app): State<Arc<App>>) -> Json<serde_json::Value> {
    let model = json!({"id": app.config.model.name, "object": "model", "owned_by": "weirpool"});
    Json(json!({"object": "list", "data": [model]}))
}

/// Reports whether the devices and the workers work. An orchestrator restarts a server otherwise.
async fn health(State(app): State<Arc<App>>) -> Response {
    for (index, engine) in app.engines.all().iter().enumerate() {
        let health = engine.pool().inspect().health();
        let text = match engine.lost_worker() {
            Some(worker) => {
                format!("worker {worker} of device {index} has ended; restart the server\n")
            }
            None if health.fault.is_some() => format!("device {index}: {health}\n"),
            None => continue,
        };
        return (StatusCode::INTERNAL_SERVER_ERROR, text).into_response();
    }
    let health = app.engines.first().pool().inspect().health();
    (StatusCode::OK, format!("{health}\n")).into_response()
}

/// Reports whether a request would be admitted or wait. A load balancer sends no requests otherwise.
async fn ready(State(app): State<Arc<App>>) -> Response {
    let (status, text) = match app.engines.are_serving() {
        true => (StatusCode::OK, "ready\n"),
        false => (
            StatusCode::SERVICE_UNAVAILABLE,
            "not ready: shutting down, or the device has failed\n",
        ),
    };
    (status, text).into_response()
}

async fn figures(State(app): State<Arc<App>>) -> Response {
    // It takes a while for many tenants, and the runtime's threads have answers to send.
    let text = tokio::task::spawn_blocking(move || app.figures.render(&app.engines)).await;
    let Ok(text) = text else {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    };
    let format = [(
        header::CONTENT_TYPE,
        "text/plain; version=0.0.4; charset=utf-8",
    )];
    (format, text).into_response()
}

/// Returns the time in seconds since 1970.
fn unix_time() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}
