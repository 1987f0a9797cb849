//! Names of networks.

use std::fmt;
use std::str::FromStr;

/// A network that can be trained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Architecture {
    /// For small images such as CIFAR's.
    ResNet20,
    /// The smallest for ImageNet.
    ResNet18,
    /// What most measurements are made with.
    ResNet50,
    /// Large dense layers: much to send, little to compute.
    Vgg16,
    /// Many different branches.
    InceptionV3,
    /// The first of them; mostly dense layers.
    AlexNet,
    /// Few parameters, many branches.
    GoogLeNet,
    /// Depthwise convolutions: little to send and little to compute.
    MobileNetV2,
    /// Makes images larger.
    Edsr,
    /// The oldest.
    LeNet,
}

const ALL: [(Architecture, &str); 10] = [
    (Architecture::ResNet20, "resnet20"),
    (Architecture::ResNet18, "resnet18"),
    (Architecture::ResNet50, "resnet50"),
    (Architecture::Vgg16, "vgg16"),
    (Architecture::InceptionV3, "inception-v3"),
    (Architecture::AlexNet, "alexnet"),
    (Architecture::GoogLeNet, "googlenet"),
    (Architecture::MobileNetV2, "mobilenet-v2"),
    (Architecture::Edsr, "edsr"),
    (Architecture::LeNet, "lenet"),
];

impl Architecture {
    /// All there are.
    pub fn all() -> impl Iterator<Item = Self> {
        ALL.into_iter().map(|(architecture, _)| architecture)
    }

    /// The name by which it is asked for.
    pub fn name(self) -> &'static str {
        ALL.iter().find(|(architecture, _)| *architecture == self).map_or("", |(_, name)| name)
    }

    /// Height and width of the images it was published with; of the small ones for super-resolution.
    pub fn default_image_size(self) -> usize {
        match self {
            Self::ResNet20 | Self::LeNet => 32,
            Self::InceptionV3 => 299,
            Self::Edsr => 48,
            _ => 224,
        }
    }

    /// The least height and width: with less, some pooling or convolution has nothing left to look at.
    pub fn least_image_size(self) -> usize {
        match self {
            Self::ResNet20 | Self::ResNet18 | Self::ResNet50 | Self::MobileNetV2 | Self::Edsr => 1,
            Self::LeNet => 16,
            Self::GoogLeNet => 15,
            Self::Vgg16 => 32,
            Self::AlexNet => 63,
            Self::InceptionV3 => 75,
        }
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// There is no network of that name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownArchitecture {
    asked: String,
}

impl fmt::Display for UnknownArchitecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "there is no model `{}`", self.asked)?;
        let asked = plain(&self.asked);
        // Below this likeness a guess is more of a puzzle than a help. Among those that are alike the one with the
        // fewest letters to change is nearest, then the one that is more alike: likeness alone is the same for all
        // names that begin as the wrong one does.
        let like = |name: &str| strsim::jaro_winkler(&asked, &plain(name));
        let near = ALL.iter().map(|(_, name)| (strsim::levenshtein(&asked, &plain(name)), like(name), name));
        let nearest =
            near.filter(|(_, likeness, _)| *likeness > 0.8).min_by(|a, b| a.0.cmp(&b.0).then(b.1.total_cmp(&a.1)));
        if let Some((_, _, name)) = nearest {
            write!(f, "; did you mean `{name}`?")?;
        }
        let names: Vec<&str> = ALL.iter().map(|(_, name)| *name).collect();
        write!(f, " (models: {})", names.join(", "))
    }
}

impl std::error::Error for UnknownArchitecture {}

/// Letters and digits in lower case: `ResNet-50`, `resnet_50` and `resnet50` are the same to users.
fn plain(name: &str) -> String {
    name.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
}

impl FromStr for Architecture {
    type Err = UnknownArchitecture;

    fn from_str(asked: &str) -> Result<Self, UnknownArchitecture> {
        let wanted = match plain(asked).as_str() {
            "inception" => "inceptionv3".to_owned(),
            "mobilenet" => "mobilenetv2".to_owned(),
            "lenet5" => "lenet".to_owned(),
            "vgg" => "vgg16".to_owned(),
            other => other.to_owned(),
        };
        let found = ALL.iter().find(|(_, name)| plain(name) == wanted);
        found.map(|(architecture, _)| *architecture).ok_or_else(|| UnknownArchitecture { asked: asked.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_people_write_them() {
        for architecture in Architecture::all() {
            assert_eq!(architecture.to_string().parse(), Ok(architecture));
        }
        assert_eq!("ResNet-50".parse(), Ok(Architecture::ResNet50));
        assert_eq!("inception_v3".parse(), Ok(Architecture::InceptionV3));
        assert_eq!("LeNet-5".parse(), Ok(Architecture::LeNet));
    }

    #[test]
    fn an_unknown_name_gets_the_nearest_and_the_list() {
        let message = "resnet5".parse::<Architecture>().unwrap_err().to_string();
        assert!(message.contains("no model `resnet5`; did you mean `resnet50`?"), "{message}");
        let message = "resnet21".parse::<Architecture>().unwrap_err().to_string();
        assert!(message.contains("did you mean `resnet20`?"), "{message}");
        let message = "transformer".parse::<Architecture>().unwrap_err().to_string();
        assert!(!message.contains("did you mean"), "{message}");
        assert!(message.contains("resnet20") && message.contains("lenet"), "{message}");
    }
}
