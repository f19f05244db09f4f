//! Choices that have names.

/// Gives an enum without content its list of variants, `name`, `Display` and `FromStr`, as options are given and shown.
///
/// The variants are listed in the order in which users are told of them.
#[macro_export]
macro_rules! named {
    ($kind:ident { $($variant:ident = $name:literal),+ $(,)? }) => {
        impl $kind {
            /// All variants.
            pub const ALL: [$kind; [$($name),+].len()] = [$($kind::$variant),+];

            /// Its name, as in options.
            pub fn name(self) -> &'static str {
                match self {
                    $($kind::$variant => $name),+
                }
            }
        }

        impl ::std::fmt::Display for $kind {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.write_str(self.name())
            }
        }

        impl ::std::str::FromStr for $kind {
            type Err = ::std::string::String;

            /// Reads a variant by its name.
            ///
            /// # Errors
            /// Words that list the names.
            fn from_str(s: &str) -> ::std::result::Result<$kind, Self::Err> {
                let found = Self::ALL.into_iter().find(|v| v.name() == s);
                found.ok_or_else(|| ::std::format!("{s} is none of {}", Self::ALL.map($kind::name).join(", ")))
            }
        }
    };
}

#[cfg(test)]
mod tests {
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Way {
        Up,
        Down,
    }
    named!(Way { Down = "down", Up = "up" });

    #[test]
    fn names_lead_there_and_back() {
        assert!(Way::ALL.into_iter().all(|w| w.to_string().parse() == Ok(w)));
        assert_eq!("side".parse::<Way>(), Err("side is none of down, up".into()));
    }
}
