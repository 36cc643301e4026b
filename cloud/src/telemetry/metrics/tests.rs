//! The text of all metrics.

use super::*;

fn now() -> Now {
    let driver = DriverNow {
        driver: "d.example".parse().unwrap(),
        nodes: (3, 2),
        set_apart: vec![("other_name", 1)],
        health: vec![("up", 2), ("gone", 1)],
        homes: 7,
        homes_unconfirmed: 3,
        intents: 1,
        in_flight: vec![("sent", 4)],
        limit: 1024,
    };
    let links = vec![("wss", 2), ("quic", 0)];
    Now {
        nodes: (5, 1),
        links,
        link_ups: 9,
        link_looks_untrusted: 3,
        not_taken: (65, 2),
        quota_refusals: vec![("drivers", 2)],
        log_suppressed: vec![("stranger", 8)],
        records_bytes: (10, 30),
        certificates: vec![("cloud", 77), ("ca", -5)],
        links_ending: 4,
        store_older: true,
        clock_doubted: true,
        certificates_shared: 3,
        queue: 6,
        replica: ReplicaNow {
            leads: true,
            epoch: 1_763_972_345,
            commit: 12,
            trouble: true,
            read_backs: 3,
        },
        drivers: vec![driver],
    }
}

#[test]
fn all_is_written_with_its_labels() {
    let metrics = Metrics::default();
    let driver = "d.example".parse().unwrap();
    metrics.answered("CreateVolume", &driver, Code::Unavailable);
    metrics.passed(Hop::Link, "CreateVolume", &driver, Duration::from_millis(3));
    metrics.role("leading");
    metrics.slow(&driver);
    metrics.slow(&driver);
    metrics.api_request("CSIDriver apply", "conflict", Duration::from_millis(3));
    metrics.commits().count(1, Duration::from_millis(3), true);
    metrics.commits().count(2, Duration::from_millis(3), false);
    let text = metrics.text(&now());
    for line in [
        "edge_csi_records_bytes 10",
        r#"edge_csi_certificate_seconds{of="cloud"} 77"#,
        r#"edge_csi_certificate_seconds{of="ca"} -5"#,
        "edge_csi_links_ending 4",
        "edge_csi_store_older 1",
        "edge_csi_clock_doubted 1",
        "edge_csi_certificates_shared 3",
        "edge_csi_records_bytes_limit 30",
        r#"edge_csi_calls_total{rpc="CreateVolume",driver="d.example",code="UNAVAILABLE"} 1"#,
        concat!(
            r#"edge_csi_call_seconds_bucket{le="0.005",hop="link","#,
            r#"rpc="CreateVolume",driver="d.example"} 1"#
        ),
        r#"edge_csi_calls_in_flight{driver="d.example",stage="sent"} 4"#,
        r#"edge_csi_calls_in_flight_limit{driver="d.example"} 1024"#,
        r#"edge_csi_links{transport="wss"} 2"#,
        "edge_csi_replica_leads 1",
        "edge_csi_replica_epoch 1763972345",
        "edge_csi_replica_commit 12",
        "edge_csi_replica_trouble 1",
        "edge_csi_store_read_backs_total 3",
        "edge_csi_link_ups_total 9",
        "edge_csi_link_looks_untrusted_total 3",
        "edge_csi_nodes 5",
        "edge_csi_nodes_removed 1",
        "edge_csi_direct_not_taken 65",
        "edge_csi_direct_not_taken_nodes 2",
        r#"edge_csi_driver_nodes_linked{driver="d.example"} 2"#,
        r#"edge_csi_driver_nodes_set_apart{driver="d.example",reason="other_name"} 1"#,
        r#"edge_csi_driver_nodes_health{driver="d.example",state="gone"} 1"#,
        r#"edge_csi_quota_refusals_total{quota="drivers"} 2"#,
        r#"edge_csi_log_lines_suppressed_total{peer="stranger"} 8"#,
        r#"edge_csi_homes{driver="d.example"} 7"#,
        r#"edge_csi_homes_unconfirmed{driver="d.example"} 3"#,
        r#"edge_csi_intents_open{driver="d.example"} 1"#,
        r#"edge_csi_list_slow_nodes_total{driver="d.example"} 2"#,
        r#"edge_csi_kubernetes_requests_total{request="CSIDriver apply",outcome="conflict"} 1"#,
        "edge_csi_kubernetes_request_seconds_count 1",
        "edge_csi_store_queue 6",
        r#"edge_csi_roles_total{role="leading"} 1"#,
        "edge_csi_store_commits_total 2",
        "edge_csi_store_commit_failures_total 1",
        "edge_csi_store_commit_seconds_count 2",
        "edge_csi_store_commit_changes_sum 3.0",
    ] {
        assert!(text.lines().any(|written| written == line), "{line} is not in\n{text}");
    }
    assert!(text.ends_with("# EOF\n"));
}

#[test]
fn the_age_of_what_was_not_asked_is_that_of_the_last_list() {
    let (metrics, driver) = (Metrics::default(), "d.example".parse().unwrap());
    for age in [61_900, 2_000] {
        metrics.remembered(&driver, Duration::from_millis(age));
    }
    let text = metrics.text(&now());
    assert!(text.contains("edge_csi_remembered_seconds{driver=\"d.example\"} 2\n"), "{text}");
}
