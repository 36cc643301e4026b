//! ServiceAccount tokens of csi-edge: Kubernetes says on which node the pod with the token runs.
//!
//! A token counts only if the API server authenticates it for our audience. It must be of the one
//! ServiceAccount that the configuration names, and bound to a pod on a node.

use std::sync::Arc;

use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, TokenReviewStatus};
use kube::Api;
use kube::api::PostParams;
use proto::host::chain;
use proto::names::NodeName;
use tracing::warn;

use crate::kubernetes::api::Server;
use crate::kubernetes::settings::{Kubernetes, ServiceAccount};
use crate::pki::enrolment::{Review, ReviewError};
use crate::telemetry::calls::Calls;

/// The audience of the tokens, so that no other token of a pod lets a node join.
const AUDIENCE: &str = "edge-csi";
/// The key under which Kubernetes names the node of a token's pod.
const NODE: &str = "authentication.kubernetes.io/node-name";

/// Reviews tokens of the ServiceAccount in the settings; none if they name none.
///
/// # Errors
/// The kubeconfig or the pod's environment cannot be read or used.
pub async fn reviewer(settings: &Kubernetes, calls: Arc<Calls>) -> anyhow::Result<Option<Review>> {
    let Some(account) = settings.join_service_account.clone() else { return Ok(None) };
    let server = Arc::new(Server::new(&settings.api, calls).await?);
    let review: Review = Arc::new(move |token| {
        let server = server.clone();
        let account = account.clone();
        Box::pin(async move { review(&server, &account, token).await })
    });
    Ok(Some(review))
}

async fn review(
    server: &Server,
    account: &ServiceAccount,
    token: String,
) -> Result<NodeName, ReviewError> {
    let spec = TokenReviewSpec { audiences: Some(vec![AUDIENCE.into()]), token };
    let review = TokenReview { spec, ..TokenReview::default() };
    let api = Api::<TokenReview>::all(server.client.clone());
    let params = PostParams::default();
    let reviewed = server.ask("token review", api.create(&params, &review)).await;
    let reviewed = reviewed.map_err(|error| {
        warn!(error = chain(&error), "a ServiceAccount's token cannot be reviewed");
        ReviewError::Unavailable
    })?;
    node_of(&reviewed.status.unwrap_or_default(), account)
}

/// The node of a reviewed token.
fn node_of(status: &TokenReviewStatus, account: &ServiceAccount) -> Result<NodeName, ReviewError> {
    let audiences = status.audiences.as_deref().unwrap_or_default();
    // An API server that knows no audiences leaves them out, and then reviews for its own.
    let is_ours = audiences.iter().any(|audience| audience == AUDIENCE);
    if status.authenticated != Some(true) || !is_ours {
        return Err(ReviewError::NotAuthenticated);
    }
    let user = status.user.clone().unwrap_or_default();
    if user.username.as_deref() != Some(account.username().as_str()) {
        return Err(ReviewError::OtherAccount(account.to_string()));
    }
    let extra = user.extra.unwrap_or_default();
    match extra.get(NODE).map(Vec::as_slice) {
        Some([node]) => node.parse().map_err(|_| ReviewError::NotBound),
        _ => Err(ReviewError::NotBound),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::authentication::v1::UserInfo;

    fn status() -> TokenReviewStatus {
        let extra = [(NODE.to_owned(), vec!["n1".to_owned()])].into();
        let user = UserInfo {
            username: Some("system:serviceaccount:edge-csi:csi-edge".into()),
            extra: Some(extra),
            ..UserInfo::default()
        };
        TokenReviewStatus {
            authenticated: Some(true),
            audiences: Some(vec![AUDIENCE.into()]),
            user: Some(user),
            error: None,
        }
    }

    #[test]
    fn a_token_is_of_the_node_that_kubernetes_says_and_of_one_account() {
        let account: ServiceAccount = "edge-csi/csi-edge".parse().unwrap();
        assert_eq!(node_of(&status(), &account).unwrap().as_str(), "n1");
        let user = |change: fn(&mut UserInfo)| {
            let mut status = status();
            change(status.user.as_mut().unwrap());
            status
        };
        let other = "system:serviceaccount:edge-csi:other";
        for (status, expected) in [
            (TokenReviewStatus { authenticated: None, ..status() }, ReviewError::NotAuthenticated),
            (TokenReviewStatus { audiences: None, ..status() }, ReviewError::NotAuthenticated),
            (
                TokenReviewStatus { audiences: Some(vec!["api".into()]), ..status() },
                ReviewError::NotAuthenticated,
            ),
            (
                user(|user| user.username = Some("system:serviceaccount:edge-csi:other".into())),
                ReviewError::OtherAccount("edge-csi/csi-edge".into()),
            ),
            (user(|user| user.extra = None), ReviewError::NotBound),
            (
                user(|user| user.extra = Some([(NODE.into(), vec!["A b".into()])].into())),
                ReviewError::NotBound,
            ),
            (
                user(|user| {
                    let two = vec!["n1".into(), "n2".into()];
                    user.extra = Some([(NODE.into(), two)].into());
                }),
                ReviewError::NotBound,
            ),
        ] {
            assert_eq!(node_of(&status, &account), Err(expected));
        }
        assert!(other.parse::<ServiceAccount>().is_err());
    }
}
