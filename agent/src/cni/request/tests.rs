use super::Variables;

fn with_arguments(text: &str) -> Variables {
    Variables {
        arguments: Some(text.to_owned()),
        ..Variables::default()
    }
}

#[test]
fn the_arguments_of_kubernetes_name_the_pod() {
    let variables = with_arguments(
        "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web;K8S_POD_INFRA_CONTAINER_ID=ab;K8S_POD_UID=u-1",
    );
    let pod = variables.pod().unwrap().unwrap();
    assert_eq!(pod.name.to_string(), "shop/web");
    assert_eq!(pod.uid.as_deref(), Some("u-1"));
    assert_eq!(Variables::default().pod().unwrap(), None);
}

#[test]
fn malformed_variables_are_errors() {
    assert!(with_arguments("K8S_POD_NAME").pod().is_err());
    assert!(with_arguments("K8S_POD_NAME=web").pod().is_err());
    for id in ["", "../../etc", "a b", "-x"] {
        let variables = Variables {
            container: Some(id.to_owned()),
            ..Variables::default()
        };
        assert!(variables.container().is_err(), "{id:?}");
    }
}
