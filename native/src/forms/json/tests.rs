//! Compares whole answers with bodies worked out by hand, on the servable of plan/tests.rs: row `i` of its table is
//! `[10 i, 10 i + 1]`.

use std::collections::HashMap;
use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::forms::{Call, Version, lookup_json, table_rows, tensorflow_json};
use crate::plan::tests::{feature, input, is_fault, output, servable, toy};
use crate::plan::{Declined, Effort, ModelRoutes, Routes, Servable};

/// The kind of JSON request that a test sends: `:lookup`, `:predict` or `:rows`.
#[derive(Clone, Copy, Debug)]
enum Form {
    Lookup,
    Predict,
    Rows,
}

fn routes(servable: Servable) -> Routes {
    let model = ModelRoutes {
        versions: vec![(3, Some(Arc::new(servable)))],
        labels: vec![("stable".to_owned(), 3)],
        problem: String::new(),
        log_rate: 0.0,
    };
    Routes::default().with(HashMap::from([("m".to_owned(), model)]), &[])
}

fn ask(routes: &Routes, form: Form, effort: Effort<'_>, body: &[u8]) -> Result<String, Declined> {
    let call = Call {
        routes,
        effort,
        max_response_bytes: 1 << 20,
        encoding: crate::forms::TensorEncoding::Values,
        strict_json: false,
        grant: None,
        log: None,
    };
    let body = match form {
        Form::Lookup => lookup_json::answer(&call, "m", Version::Latest, body)?.body,
        Form::Predict => tensorflow_json::answer(&call, "m", Version::Latest, body)?.body,
        Form::Rows => table_rows::answer(&call, "m", Version::Label("stable"), "t0", 4, body)?.body,
    };
    Ok(String::from_utf8(body.to_vec()).expect("text"))
}

/// Returns the answer to one JSON body, from the servable of plan/tests.rs.
fn answer(form: Form, body: &str) -> Result<String, Declined> {
    ask(&routes(toy()), form, Effort::Any, body.as_bytes())
}

/// Returns a servable whose signature "lookup" has only the ragged feature "bag".
fn bag() -> Servable {
    let inputs =
        [input("bag__values", "int64", json!([null]), true), input("bag__row_splits", "int64", json!([null]), true)];
    let signature = json!({"name": "serving_default", "kind": "lookup", "max_rows": null,
        "graph": null, "inputs": inputs, "features": [feature("bag", 0, json!({"row_splits": 1, "combiner": "sum"}))],
        "outputs": [output("bag", &[0], false)]});
    servable(json!([signature]), &[(5, 2)])
}

#[test]
fn a_lookup_answers_each_feature_that_was_sent() {
    let cases = [
        (r#"{"features":{"one":[4,0]}}"#, r#"{"embeddings":{"one":[[40.0,41.0],[0.0,1.0]]}}"#),
        (
            " {\t\"signature_name\" : \"lookup\" ,\r\n \"features\" : { \"one\" : [ 1 ] } } ",
            r#"{"embeddings":{"one":[[10.0,11.0]]}}"#,
        ),
        (
            r#"{"features":{"bag":[[1,2],[],[3]]},"weights":{"bag":[[1,3.0],[],[2]]},"signature_name":""}"#,
            r#"{"embeddings":{"bag":[[17.5,18.5],[0.0,0.0],[30.0,31.0]]}}"#,
        ),
        (
            r#"{"features":{"path":[[3],[]],"pair":[[1,2],[3,4]]}}"#,
            concat!(
                r#"{"embeddings":{"path":[[[30.0,31.0],[0.0,0.0]],[[0.0,0.0],[0.0,0.0]]],"#,
                r#""pair":[[[10.0,11.0],[20.0,21.0]],[[30.0,31.0],[40.0,41.0]]],"#,
                r#""flat":[[30.0,31.0,0.0,0.0,10.0,11.0,20.0,21.0],[0.0,0.0,0.0,0.0,30.0,31.0,40.0,41.0]]}}"#,
            ),
        ),
        (r#"{"features":{"one":[]}}"#, r#"{"embeddings":{"one":[]}}"#),
        (r#"{"features":{"bag":[]}}"#, r#"{"embeddings":{"bag":[]}}"#),
        (r#"{"features":{"\u006fne":[1]},"weights":{}}"#, r#"{"embeddings":{"one":[[10.0,11.0]]}}"#),
    ];
    for (body, expected) in cases {
        assert_eq!(answer(Form::Lookup, body).as_deref(), Ok(expected), "{body}");
    }
}

#[test]
fn a_lookup_declines_all_other_bodies() {
    let bodies = [
        "",
        "[]",
        "{}",
        "null",
        r#"{"features":{}}"#,
        r#"{"features":[1]}"#,
        r#"{"features":{"one":[1]},"more":1}"#,
        r#"{"features":{"one":[1]},"features":{"one":[1]}}"#,
        r#"{"features":{"one":[1],"one":[1]}}"#,
        r#"{"features":{"one":[1],"\u006fne":[1]}}"#,
        r#"{"features":{"one":[1,]}}"#,
        r#"{"features":{"one":[01]}}"#,
        r#"{"features":{"one":[+1]}}"#,
        r#"{"features":{"one":[1.0]}}"#,
        r#"{"features":{"one":["1"]}}"#,
        r#"{"features":{"one":[true]}}"#,
        r#"{"features":{"one":[null]}}"#,
        r#"{"features":{"one":[NaN]}}"#,
        r#"{"features":{"one":[5]}}"#,
        r#"{"features":{"one":[-1]}}"#,
        r#"{"features":{"one":1}}"#,
        r#"{"features":{"one":[[1]]}}"#,
        r#"{"features":{"one":[[1],2]}}"#,
        r#"{"features":{"one":[9223372036854775808]}}"#,
        r#"{"features":{"two":[1]}}"#,
        r#"{"features":{"bag":[1]}}"#,
        r#"{"features":{"bag":[[[1]]]}}"#,
        r#"{"features":{"bag__values":[1],"bag__row_splits":[0,1]}}"#,
        r#"{"features":{"path":[[2147483648]]}}"#,
        r#"{"features":{"pair":[[1,2],[3]]}}"#,
        r#"{"features":{"bag":[[1]]},"weights":{"bag":[[1,2]]}}"#,
        r#"{"features":{"bag":[[1]]},"weights":{"one":[[1]]}}"#,
        r#"{"features":{"one":[1]},"weights":{"one":[1]}}"#,
        r#"{"features":{"path":[[1]]},"weights":{"path":[[1]]}}"#,
        r#"{"features":{"one":[1]},"signature_name":5}"#,
        r#"{"features":{"one":[1]},"signature_name":"other"}"#,
        r#"{"features":{"one":[1]},"signature_name":"\ud800"}"#,
    ];
    for body in bodies {
        assert!(answer(Form::Lookup, body).is_err(), "{body}");
    }
    let routes = routes(toy());
    assert!(ask(&routes, Form::Lookup, Effort::Any, b"{\"features\":{\"\xff\":[1]}}").is_err());
    assert!(ask(&routes, Form::Lookup, Effort::Any, b"\xef\xbb\xbf{\"features\":{\"one\":[1]}}").is_ok());
}

#[test]
fn a_predict_answers_by_row_and_by_column() {
    let cases = [
        (
            r#"{"signature_name":"lookup","instances":[{"one":1,"bag":[1,2]},{"bag":[],"one":4}]}"#,
            concat!(
                r#"{"predictions":[{"one":[10.0,11.0],"bag":[15.0,16.0],"both":[10.0,11.0,15.0,16.0]},"#,
                r#"{"one":[40.0,41.0],"bag":[0.0,0.0],"both":[40.0,41.0,0.0,0.0]}]}"#
            ),
        ),
        (r#"{"signature_name":"lookup","instances":[{"one":1}]}"#, r#"{"predictions":[[10.0,11.0]]}"#),
        (r#"{"inputs":{"one":[1]},"signature_name":"lookup"}"#, r#"{"outputs":[[10.0,11.0]]}"#),
        (
            r#"{"inputs":{"bag__weights":[[1,3]],"bag":[[1,2]],"path__values":[],"path__row_splits":[0,0]},"signature_name":"lookup"}"#,
            r#"{"outputs":{"bag":[[17.5,18.5]],"path":[[[0.0,0.0],[0.0,0.0]]]}}"#,
        ),
        (
            r#"{"inputs":{"bag__weights":[1,3],"bag__values":[1,2],"bag__row_splits":[0,2]},"signature_name":"lookup"}"#,
            r#"{"outputs":[[17.5,18.5]]}"#,
        ),
    ];
    for (body, expected) in cases {
        assert_eq!(answer(Form::Predict, body).as_deref(), Ok(expected), "{body}");
    }
    let bodies = [
        r#"{"signature_name":"lookup"}"#,
        r#"{"inputs":{"one":[1]}}"#,
        r#"{"signature_name":"lookup","instances":[]}"#,
        r#"{"signature_name":"lookup","instances":[{}]}"#,
        r#"{"signature_name":"lookup","instances":[1]}"#,
        r#"{"signature_name":"lookup","instances":[{"one":1},{}]}"#,
        r#"{"signature_name":"lookup","instances":[{"one":1},2]}"#,
        r#"{"signature_name":"lookup","instances":[{"one":1},{"one":1,"one":1}]}"#,
        r#"{"signature_name":"lookup","instances":[{"one":1},{"one":1,"bag":[1]}]}"#,
        r#"{"signature_name":"lookup","instances":[{"one":1,"bag":[1]},{"one":1}]}"#,
        r#"{"signature_name":"lookup","instances":[{"bag__values":1,"bag__row_splits":0}]}"#,
        r#"{"signature_name":"lookup","instances":[{"one":1}],"inputs":{"one":[1]}}"#,
        r#"{"signature_name":"lookup","inputs":{"one":[1,2],"bag":[[1]],"bag__values":[1]}}"#,
        r#"{"signature_name":"lookup","inputs":{"bag":[[1]],"bag__row_splits":[0,1]}}"#,
        r#"{"signature_name":"lookup","inputs":{"bag__weights":[1]}}"#,
        r#"{"signature_name":"lookup","inputs":{}}"#,
        r#"{"signature_name":"lookup","inputs":{"b64":"AA=="}}"#,
    ];
    for body in bodies {
        assert!(answer(Form::Predict, body).is_err(), "{body}");
    }
    // The test model's output `both` joins the features `one` and `bag`, so a request with two rows of `one` and one
    // row of `bag` is declined.
    let body = r#"{"signature_name":"lookup","inputs":{"one":[1,2],"bag":[[1]]}}"#;
    assert!(answer(Form::Predict, body).is_err());
}

#[test]
fn the_only_feature_needs_no_name() {
    let routes = routes(bag());
    let cases = [
        (r#"{"instances":[[1,2],[]]}"#, r#"{"predictions":[[30.0,32.0],[0.0,0.0]]}"#),
        (r#"{"inputs":[[1,2],[]]}"#, r#"{"outputs":[[30.0,32.0],[0.0,0.0]]}"#),
        (r#"{"instances":[{"bag":[4]}]}"#, r#"{"predictions":[[40.0,41.0]]}"#),
    ];
    for (body, expected) in cases {
        let found = ask(&routes, Form::Predict, Effort::Any, body.as_bytes());
        assert_eq!(found.as_deref(), Ok(expected), "{body}");
    }
    for body in [r#"{"instances":[1,2]}"#, r#"{"inputs":1}"#, r#"{"instances":[[1],{"bag":[1]}]}"#] {
        assert!(ask(&routes, Form::Predict, Effort::Any, body.as_bytes()).is_err(), "{body}");
    }
}

#[test]
fn lists_of_features_that_share_an_input_say_the_same() {
    let inputs = [("a", "int64"), ("b", "int64"), ("splits", "int64"), ("weights", "float32")]
        .map(|(name, dtype)| input(name, dtype, json!([null]), true));
    let both = [("a", 0), ("b", 1)];
    let features =
        both.map(|(name, ids)| feature(name, ids, json!({"row_splits": 2, "weights": 3, "combiner": "sum"})));
    let ragged = both.map(|(name, ids)| json!({"feature": name, "values": ids, "row_splits": 2, "weights": "weights"}));
    let signature = json!({"name": "serving_default", "kind": "lookup", "max_rows": null, "graph": null,
        "inputs": inputs, "features": features, "ragged_names": ragged,
        "outputs": [output("a", &[0], false), output("b", &[1], false)]});
    let routes = routes(servable(json!([signature]), &[(5, 2)]));
    let asked = |form, body: &str| ask(&routes, form, Effort::Any, body.as_bytes());
    let ones = r#""weights":[[1,1],[1]]"#;
    let expected = r#"{"outputs":{"a":[[30.0,32.0],[30.0,31.0]],"b":[[10.0,12.0],[40.0,41.0]]}}"#;
    let body = format!(r#"{{"inputs":{{"a":[[1,2],[3]],"b":[[0,1],[4]],{ones}}}}}"#);
    assert_eq!(asked(Form::Predict, &body).as_deref(), Ok(expected));
    for (form, body) in [
        (Form::Predict, r#"{"inputs":{"a":[[1,2],[3]],"b":[[0],[1,4]]}}"#.to_owned()),
        (Form::Predict, r#"{"instances":[{"a":[1,2],"b":[0]},{"a":[3],"b":[1,4]}]}"#.to_owned()),
        (Form::Lookup, r#"{"features":{"a":[[1,2]],"b":[[0]]}}"#.to_owned()),
        (Form::Lookup, r#"{"features":{"a":[[1]],"b":[[0]]},"weights":{"a":[[1]],"b":[[2]]}}"#.to_owned()),
    ] {
        assert!(is_fault(asked(form, &body)), "{body}");
    }
}

#[test]
fn ids_and_row_splits_without_a_common_name_are_two_inputs() {
    let inputs = ["v", "s"].map(|name| input(name, "int64", json!([null]), true));
    let feature = feature("v", 0, json!({"row_splits": 1, "length": 2}));
    let signature = json!({"name": "serving_default", "kind": "lookup", "max_rows": null, "graph": null,
        "inputs": inputs, "features": [feature], "outputs": [output("bag", &[0], false)]});
    let routes = routes(servable(json!([signature]), &[(5, 2)]));
    let asked = |body: &str| ask(&routes, Form::Predict, Effort::Any, body.as_bytes());
    let expected = r#"{"outputs":[[[10.0,11.0],[20.0,21.0]],[[0.0,0.0],[0.0,0.0]]]}"#;
    assert_eq!(asked(r#"{"inputs":{"v":[1,2],"s":[0,2,2]}}"#).as_deref(), Ok(expected));
    for body in [r#"{"inputs":{"v":[1,2]}}"#, r#"{"inputs":{"s":[0,2,2]}}"#, r#"{"inputs":{"v":[[1],[2]]}}"#] {
        assert!(is_fault(asked(body)), "{body}");
    }
}

#[test]
fn rows_of_a_table_are_answered_by_id() {
    assert_eq!(answer(Form::Rows, r#"{"ids":[2,0]}"#).as_deref(), Ok(r#"{"rows":[[20.0,21.0],[0.0,1.0]]}"#));
    assert_eq!(answer(Form::Rows, r#"{"ids":[]}"#).as_deref(), Ok(r#"{"rows":[]}"#));
    for body in [
        r#"{"ids":[5]}"#,
        r#"{"ids":[0,0,0,0,0]}"#,
        r#"{"ids":[[0]]}"#,
        r#"{"ids":0}"#,
        r#"{"ids":[0.5]}"#,
        r#"{"ids":[0],"more":1}"#,
        "{}",
    ] {
        assert!(answer(Form::Rows, body).is_err(), "{body}");
    }
}

#[test]
fn large_work_is_declined_on_a_small_thread() {
    let routes = routes(bag());
    let rows = vec!["[1]"; 4000].join(",");
    let body = format!("{{\"instances\":[{rows}]}}");
    let small = ask(&routes, Form::Predict, Effort::Small, body.as_bytes());
    assert_eq!(small, Err(Declined::TooLarge));
    assert!(ask(&routes, Form::Predict, Effort::Any, body.as_bytes()).is_ok());
}

/// Generates `:lookup` bodies for the servable of plan/tests.rs.
fn bodies() -> impl Strategy<Value = Value> {
    let ids = prop::collection::vec(-2_i64..7, 0..5);
    let lists = prop::collection::vec(prop::collection::vec(-2_i64..7, 0..4), 0..5);
    (ids, lists).prop_map(|(one, bag)| json!({"features": {"one": one, "bag": bag}}))
}

proptest! {
    #[test]
    fn no_bytes_make_a_panic(bytes: Vec<u8>) {
        let routes = routes(toy());
        for form in [Form::Lookup, Form::Predict, Form::Rows] {
            let _ = ask(&routes, form, Effort::Any, &bytes);
        }
    }

    #[test]
    fn no_change_of_a_body_makes_a_panic(
        body in bodies(),
        by_row: bool,
        changes in prop::collection::vec((any::<prop::sample::Index>(), prop_oneof![
            prop::sample::select(b"[]{}\",:0123456789.-e\\ tfn\xff".to_vec()), any::<u8>()
        ]), 0..4),
    ) {
        let routes = routes(toy());
        let text = if by_row {
            json!({"signature_name": "lookup", "inputs": body["features"]}).to_string()
        } else {
            body.to_string()
        };
        let mut bytes = text.into_bytes();
        for (place, byte) in changes {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        for form in [Form::Lookup, Form::Predict, Form::Rows] {
            if ask(&routes, form, Effort::Any, &bytes).is_ok() {
                prop_assert!(serde_json::from_slice::<Value>(&bytes).is_ok());
            }
        }
    }
}
