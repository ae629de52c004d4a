//! Reads an object of any format into nodes that say which fields they have. What has no node is passed over, also
//! by the reader of the format.

use std::fmt;

use serde::{
    Deserializer,
    de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor},
};

/// What the value of a node has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Fields; null is none.
    Map,
    /// Items; null is none.
    List,
    /// A string.
    Text,
    /// A string; null is none.
    OptionalText,
    /// A Boolean; null is none.
    Flag,
    /// A user or a group; null is none.
    Id,
}

impl Shape {
    /// Its name in messages.
    const fn name(self) -> &'static str {
        match self {
            Self::Map => "a mapping",
            Self::List => "a list",
            Self::Text | Self::OptionalText => "a string",
            Self::Flag => "true or false",
            Self::Id => "a number from 0 to 4294967295",
        }
    }
}

/// A part of an object that is kept.
pub(crate) trait Node {
    /// What its value has to be.
    fn shape(&self) -> Shape {
        Shape::Map
    }

    /// The node for a field; without one the field is passed over.
    fn field(&mut self, _name: &str) -> Option<&mut dyn Node> {
        None
    }

    /// The node for the next item; without one the item is passed over.
    fn item(&mut self) -> Option<&mut dyn Node> {
        None
    }

    /// The value of a string.
    fn text(&mut self, _text: &str) {}

    /// The value of a Boolean.
    fn flag(&mut self, _flag: bool) {}

    /// The value of a user or a group.
    fn id(&mut self, _id: u32) {}

    /// A field or an item was read, with the first problem so far. The problem that is returned is passed on.
    fn end(&mut self, problem: Option<String>) -> Option<String> {
        problem
    }
}

/// A node of fields by their names.
macro_rules! fields {
    ($node:ty { $($name:literal => $field:ident,)+ }) => {
        impl $crate::facts::read::Node for $node {
            fn field(&mut self, name: &str) -> Option<&mut dyn $crate::facts::read::Node> {
                match name {
                    $($name => Some(&mut self.$field),)+
                    _ => None,
                }
            }
        }
    };
}
pub(crate) use fields;

impl Node for Option<String> {
    fn shape(&self) -> Shape {
        Shape::OptionalText
    }

    fn text(&mut self, text: &str) {
        *self = Some(text.to_owned());
    }
}

impl Node for String {
    fn shape(&self) -> Shape {
        Shape::Text
    }

    fn text(&mut self, text: &str) {
        text.clone_into(self);
    }
}

impl Node for Option<bool> {
    fn shape(&self) -> Shape {
        Shape::Flag
    }

    fn flag(&mut self, flag: bool) {
        *self = Some(flag);
    }
}

impl Node for Option<u32> {
    fn shape(&self) -> Shape {
        Shape::Id
    }

    fn id(&mut self, id: u32) {
        *self = Some(id);
    }
}

/// A string that is not kept, but has to be one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AnyText;

impl Node for AnyText {
    fn shape(&self) -> Shape {
        Shape::Text
    }
}

/// Reads a value into a node. Answers the first value that has the wrong type; the rest is read nevertheless, so that
/// further documents can follow.
///
/// # Errors
/// Those of the format.
pub(crate) fn read_into<'de, D: Deserializer<'de>>(
    node: &mut dyn Node,
    deserializer: D,
) -> Result<Option<String>, D::Error> {
    let mut problem = None;
    let value = Value {
        node,
        problem: &mut problem,
    };
    value.deserialize(deserializer)?;
    Ok(problem)
}

/// The value of a node.
struct Value<'a> {
    node: &'a mut dyn Node,
    problem: &'a mut Option<String>,
}

impl Value<'_> {
    fn found(self, found: &str) {
        let expected = self.node.shape().name();
        self.problem
            .get_or_insert_with(|| format!("found {found}, expected {expected}"));
    }
}

impl<'de> DeserializeSeed<'de> for Value<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Value<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.node.shape().name())
    }

    fn visit_str<E>(self, text: &str) -> Result<(), E> {
        match self.node.shape() {
            Shape::Text | Shape::OptionalText => self.node.text(text),
            _ => self.found("a string"),
        }
        Ok(())
    }

    fn visit_bool<E>(self, flag: bool) -> Result<(), E> {
        match self.node.shape() {
            Shape::Flag => self.node.flag(flag),
            _ => self.found("true or false"),
        }
        Ok(())
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<(), E> {
        match u32::try_from(number) {
            Ok(id) if self.node.shape() == Shape::Id => self.node.id(id),
            _ => self.found("a number"),
        }
        Ok(())
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<(), E> {
        self.visit_i64(number.try_into().unwrap_or(i64::MAX))
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        self.found("a number");
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        if self.node.shape() == Shape::Text {
            self.found("null");
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        if self.node.shape() != Shape::List {
            while items.next_element::<IgnoredAny>()?.is_some() {}
            self.found("a list");
            return Ok(());
        }
        loop {
            let more = match self.node.item() {
                Some(node) => {
                    let problem = &mut *self.problem;
                    items.next_element_seed(Value { node, problem })?.is_some()
                }
                None => items.next_element::<IgnoredAny>()?.is_some(),
            };
            if !more {
                return Ok(());
            }
            *self.problem = self.node.end(self.problem.take());
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<(), A::Error> {
        if self.node.shape() != Shape::Map {
            while fields.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
            self.found("a mapping");
            return Ok(());
        }
        while let Some(field) = fields.next_key_seed(Key(&mut *self.node))? {
            match field {
                Some(node) => {
                    let problem = &mut *self.problem;
                    fields.next_value_seed(Value { node, problem })?;
                }
                None => {
                    fields.next_value::<IgnoredAny>()?;
                }
            }
            *self.problem = self.node.end(self.problem.take());
        }
        Ok(())
    }
}

/// The name of a field of a node.
struct Key<'a>(&'a mut dyn Node);

impl<'de, 'a> DeserializeSeed<'de> for Key<'a> {
    type Value = Option<&'a mut dyn Node>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'a> Visitor<'_> for Key<'a> {
    type Value = Option<&'a mut dyn Node>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("the name of a field")
    }

    fn visit_str<E>(self, name: &str) -> Result<Self::Value, E> {
        Ok(self.0.field(name))
    }
}
