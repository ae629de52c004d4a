use std::{net::SocketAddr, time::Duration};

use anyhow::Result;
use sidetrack_policy::facts::ObjectFacts;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};

use super::{
    super::{
        pauses::Backoff,
        watch::{Target, Timeouts, Update, Watch},
    },
    connect, whole_within,
};
use sidetrack_base::runtime::block_on;

/// How long the tests wait for the head of an answer.
const ANSWER: Duration = Duration::from_millis(300);

fn config(address: SocketAddr) -> kube::Config {
    kube::Config::new(format!("http://{address}").parse().unwrap())
}

/// How the first request to a server fails.
async fn failure(address: SocketAddr) -> Result<String> {
    let client = connect(&config(address), ANSWER)?;
    let target = Target {
        path: "/api/v1/namespaces".to_owned(),
        fields: None,
        metadata_only: true,
    };
    let mut watch: Watch<ObjectFacts> =
        Watch::start(client, target, Timeouts::default(), Backoff::default());
    loop {
        match tokio::time::timeout(ANSWER * 10, watch.next()).await? {
            Update::Event(_) => {}
            Update::Current => panic!("nothing has answered"),
            Update::Failed(failure) => return Ok(failure.to_string()),
        }
    }
}

#[test]
fn a_server_that_accepts_and_never_answers_is_a_problem_in_time() {
    let text = block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        failure(listener.local_addr()?).await
    });
    let text = text.unwrap().unwrap();
    assert!(text.contains("timed out"), "{text}");
}

#[test]
fn an_answer_that_never_ends_is_a_problem_in_time() {
    let text = block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let client = connect(&config(listener.local_addr()?), ANSWER)?;
        let nodes: kube::Api<k8s_openapi::api::core::v1::Node> = kube::Api::all(client);
        let server = async {
            let (mut connection, _) = listener.accept().await?;
            let mut head = [0; 4096];
            let _ = connection.read(&mut head).await?;
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n{";
            connection.write_all(answer).await?;
            Ok::<_, std::io::Error>(connection)
        };
        let (connection, answer) = tokio::join!(server, whole_within(ANSWER, nodes.get("node")));
        connection?;
        anyhow::Ok(answer.map(drop).unwrap_err().to_string())
    });
    let text = text.unwrap().unwrap();
    assert!(text.contains("did not end within 300ms"), "{text}");
}

#[test]
fn a_server_that_cannot_be_reached_is_named() {
    let text = block_on(failure(SocketAddr::from(([127, 0, 0, 1], 1))));
    assert_eq!(
        text.unwrap().unwrap(),
        "the API server at http://127.0.0.1:1/ cannot be reached: tcp connect error: Connection refused (os error 111)"
    );
}

#[test]
fn a_proxy_is_refused_with_the_cure() {
    let mut config = config(SocketAddr::from(([127, 0, 0, 1], 1)));
    config.proxy_url = Some("http://127.0.0.1:3128".parse().unwrap());
    let Err(error) = connect(&config, ANSWER) else {
        panic!("a proxy is not supported");
    };
    assert!(error.to_string().contains("NO_PROXY"), "{error}");
}
