//! Steps as words of a command line, such as `random-resized-crop=224,flip,normalize=imagenet`.
//!
//! Steps have commas between them. A step is its name, and behind `=` its parameters with colons between them; sides
//! are `224` (a square) or `HEIGHTxWIDTH`, ranges `LOW..HIGH`, numbers for bands `A/B/C`. What is not named has its
//! usual value.
//!
//! **Invariant:** what a step prints as is read as the same step.

use std::fmt::{Display, Formatter};
use std::str::FromStr;

use super::step::{Fill, Interpolation, ResizeTo, Step};

/// All words, for messages and help texts.
pub const STEP_WORDS: &str = "resize=SHORTER or =HxW, center-crop=SIDE, \
     random-resized-crop=SIDE[:scale=0.08..1][:ratio=0.75..1.333], random-crop=SIDE[:padding=0], flip[=0.5], \
     vertical-flip[=0.5], rotate=DEGREES[:interpolation=bilinear], color-jitter=BRIGHTNESS:CONTRAST:SATURATION:HUE, grayscale, \
     erase[=0.5][:scale=0.02..0.33][:ratio=0.3..3.3][:fill=0 or noise], normalize=imagenet or =MEAN:STD (A/B/C for \
     bands); a SIDE is 224 or HxW";

/// Reads steps with commas between them.
pub fn steps(text: &str) -> Result<Vec<Step>, String> {
    text.split(',').map(str::trim).filter(|word| !word.is_empty()).map(Step::from_str).collect()
}

impl FromStr for Step {
    type Err = String;

    fn from_str(text: &str) -> Result<Step, String> {
        parse(text.trim()).map_err(|cause| format!("`{text}` is no step: {cause}; steps are {STEP_WORDS}"))
    }
}

/// The parameters of a step. Those with names come behind those without.
struct Parameters<'a> {
    plain: Vec<&'a str>,
    named: Vec<(&'a str, &'a str)>,
}

impl<'a> Parameters<'a> {
    fn new(text: Option<&'a str>) -> Result<Parameters<'a>, String> {
        let (mut plain, mut named) = (Vec::new(), Vec::new());
        for part in text.into_iter().flat_map(|text| text.split(':')) {
            match part.split_once('=') {
                Some(pair) => named.push(pair),
                None if named.is_empty() => plain.push(part),
                None => return Err(format!("`{part}` stands behind parameters with names")),
            }
        }
        Ok(Parameters { plain, named })
    }

    /// Takes a parameter with a name.
    fn take(&mut self, name: &str) -> Option<&'a str> {
        let at = self.named.iter().position(|(other, _)| *other == name)?;
        Some(self.named.remove(at).1)
    }

    fn range(&mut self, name: &str, usual: (f32, f32)) -> Result<(f32, f32), String> {
        let Some(text) = self.take(name) else { return Ok(usual) };
        let (low, high) = text.split_once("..").ok_or_else(|| format!("`{text}` is no range"))?;
        Ok((number(low)?, number(high)?))
    }

    /// Ends reading: so many parameters without a name belong to the step, and none with a name is left.
    fn done<const COUNT: usize>(self) -> Result<[&'a str; COUNT], String> {
        if let Some((name, _)) = self.named.first() {
            return Err(format!("it has no parameter `{name}`"));
        }
        let count = self.plain.len();
        self.plain.try_into().map_err(|_| format!("it takes {COUNT} parameters without a name, not {count}"))
    }

    /// Like `done`, with one parameter that has a usual value.
    fn one_or(self, usual: f32) -> Result<f32, String> {
        if self.plain.is_empty() {
            return self.done::<0>().map(|[]| usual);
        }
        let [text] = self.done()?;
        number(text)
    }
}

fn parse(text: &str) -> Result<Step, String> {
    let (name, rest) = text.split_once('=').map_or((text, None), |(name, rest)| (name, Some(rest)));
    let mut of = Parameters::new(rest)?;
    Ok(match name {
        "resize" => {
            let [size] = of.done()?;
            let exact = size.contains('x');
            let (height, width) = sides(size)?;
            Step::Resize { to: if exact { ResizeTo::Exact { height, width } } else { ResizeTo::Shorter(height) } }
        }
        "center-crop" => {
            let [size] = of.done()?;
            let (height, width) = sides(size)?;
            Step::CenterCrop { height, width }
        }
        "random-resized-crop" => {
            let scale = of.range("scale", (0.08, 1.0))?;
            let ratio = of.range("ratio", (3.0 / 4.0, 4.0 / 3.0))?;
            let [size] = of.done()?;
            let (height, width) = sides(size)?;
            Step::RandomResizedCrop { height, width, scale, ratio }
        }
        "random-crop" => {
            let padding = of.take("padding").map_or(Ok(0), side)?;
            let [size] = of.done()?;
            let (height, width) = sides(size)?;
            Step::RandomCrop { height, width, padding }
        }
        "flip" => Step::RandomHorizontalFlip { p: of.one_or(0.5)? },
        "vertical-flip" => Step::RandomVerticalFlip { p: of.one_or(0.5)? },
        "rotate" => {
            let interpolation = match of.take("interpolation") {
                None | Some("nearest") => Interpolation::Nearest,
                Some("bilinear") => Interpolation::Bilinear,
                Some(other) => return Err(format!("`{other}` is no interpolation: nearest or bilinear")),
            };
            let [degrees] = of.done()?;
            Step::RandomRotation { degrees: number(degrees)?, interpolation }
        }
        "color-jitter" => {
            let [brightness, contrast, saturation, hue] = of.done::<4>()?.map(number);
            Step::ColorJitter { brightness: brightness?, contrast: contrast?, saturation: saturation?, hue: hue? }
        }
        "grayscale" => {
            of.done::<0>()?;
            Step::Grayscale
        }
        "erase" => {
            let scale = of.range("scale", (0.02, 0.33))?;
            let ratio = of.range("ratio", (0.3, 3.3))?;
            let fill = match of.take("fill") {
                None => Fill::Constant(0.0),
                Some("noise") => Fill::Noise,
                Some(text) => Fill::Constant(number(text)?),
            };
            Step::RandomErasing { p: of.one_or(0.5)?, scale, ratio, fill }
        }
        "normalize" if rest == Some("imagenet") => Step::normalize_imagenet(),
        "normalize" => {
            let [mean, std]: [Result<Vec<f32>, String>; 2] =
                of.done()?.map(|text| text.split('/').map(number).collect());
            Step::Normalize { mean: mean?, std: std? }
        }
        _ => return Err(format!("`{name}` is not known")),
    })
}

fn number(text: &str) -> Result<f32, String> {
    text.parse().map_err(|_| format!("`{text}` is no number"))
}

fn side(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| format!("`{text}` is no number of pixels"))
}

/// Height and width.
fn sides(text: &str) -> Result<(usize, usize), String> {
    match text.split_once('x') {
        Some((height, width)) => Ok((side(height)?, side(width)?)),
        None => side(text).map(|side| (side, side)),
    }
}

impl Display for Step {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let sides = |height: &usize, width: &usize| {
            if height == width { height.to_string() } else { format!("{height}x{width}") }
        };
        let bands = |numbers: &[f32]| numbers.iter().map(f32::to_string).collect::<Vec<_>>().join("/");
        match self {
            Step::Resize { to: ResizeTo::Shorter(side) } => write!(f, "resize={side}"),
            Step::Resize { to: ResizeTo::Exact { height, width } } => write!(f, "resize={height}x{width}"),
            Step::CenterCrop { height, width } => write!(f, "center-crop={}", sides(height, width)),
            Step::RandomResizedCrop { height, width, scale, ratio } => {
                write!(f, "random-resized-crop={}", sides(height, width))?;
                let usual = Step::random_resized_crop(1);
                let Step::RandomResizedCrop { scale: usual_scale, ratio: usual_ratio, .. } = usual else {
                    unreachable!("invariant: a constructor makes its own step")
                };
                write_range(f, "scale", *scale, usual_scale)?;
                write_range(f, "ratio", *ratio, usual_ratio)
            }
            Step::RandomCrop { height, width, padding: 0 } => write!(f, "random-crop={}", sides(height, width)),
            Step::RandomCrop { height, width, padding } => {
                write!(f, "random-crop={}:padding={padding}", sides(height, width))
            }
            Step::RandomHorizontalFlip { p: 0.5 } => f.write_str("flip"),
            Step::RandomHorizontalFlip { p } => write!(f, "flip={p}"),
            Step::RandomVerticalFlip { p: 0.5 } => f.write_str("vertical-flip"),
            Step::RandomVerticalFlip { p } => write!(f, "vertical-flip={p}"),
            Step::RandomRotation { degrees, interpolation: Interpolation::Nearest } => write!(f, "rotate={degrees}"),
            Step::RandomRotation { degrees, interpolation: Interpolation::Bilinear } => {
                write!(f, "rotate={degrees}:interpolation=bilinear")
            }
            Step::ColorJitter { brightness, contrast, saturation, hue } => {
                write!(f, "color-jitter={brightness}:{contrast}:{saturation}:{hue}")
            }
            Step::Grayscale => f.write_str("grayscale"),
            Step::RandomErasing { p, scale, ratio, fill } => {
                write!(f, "erase={p}")?;
                write_range(f, "scale", *scale, (0.02, 0.33))?;
                write_range(f, "ratio", *ratio, (0.3, 3.3))?;
                match fill {
                    Fill::Constant(0.0) => Ok(()),
                    Fill::Constant(value) => write!(f, ":fill={value}"),
                    Fill::Noise => f.write_str(":fill=noise"),
                }
            }
            step if *step == Step::normalize_imagenet() => f.write_str("normalize=imagenet"),
            Step::Normalize { mean, std } => write!(f, "normalize={}:{}", bands(mean), bands(std)),
        }
    }
}

fn write_range(f: &mut Formatter<'_>, name: &str, range: (f32, f32), usual: (f32, f32)) -> std::fmt::Result {
    if range == usual { Ok(()) } else { write!(f, ":{name}={}..{}", range.0, range.1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_is_read_again() {
        let text = "random-resized-crop=224,flip,normalize=imagenet";
        let usual = [Step::random_resized_crop(224), Step::RandomHorizontalFlip { p: 0.5 }, Step::normalize_imagenet()];
        assert_eq!(steps(text).unwrap(), usual);
        let all = "resize=256,resize=20x30,center-crop=7x9,random-resized-crop=8x9:scale=0.5..1:ratio=1..2,\
                   random-crop=32:padding=4,random-crop=5,flip=0.25,vertical-flip,vertical-flip=1,rotate=15,rotate=7:interpolation=bilinear,\
                   color-jitter=0.4:0.4:0.4:0.1,grayscale,erase=0.5,erase=0.1:scale=0.1..0.2:ratio=1..1:fill=noise,\
                   erase=1:fill=0.5,normalize=0.5:0.25,normalize=0.1/0.2/0.3:1/2/3";
        let read = steps(all).unwrap();
        assert_eq!(read.iter().map(Step::to_string).collect::<Vec<_>>().join(","), all);
        assert_eq!(steps("erase, ,").unwrap(), [Step::random_erasing(0.5)]);
    }

    #[test]
    fn what_is_no_step_is_named() {
        for (text, cause) in [
            ("crop=3", "not known"),
            ("resize", "takes 1 parameters"),
            ("resize=-3", "no number of pixels"),
            ("flip=maybe", "no number"),
            ("flip=0.1:0.2", "takes 1 parameters"),
            ("flip:p", "not known"),
            ("random-resized-crop=9:scale=3", "no range"),
            ("random-crop=9:fill=3", "no parameter `fill`"),
            ("random-crop=padding=3:9", "behind parameters"),
            ("color-jitter=1:2", "takes 4"),
            ("normalize=coco", "takes 2"),
            ("grayscale=1", "takes 0"),
        ] {
            let error = steps(text).unwrap_err();
            assert!(error.contains(cause) && error.contains("steps are"), "{error}");
        }
    }
}
