//! Which store a URL names, and how requests to it are signed: [`Place`].
//!
//! Credentials, endpoints and regions come from the variables that the clouds' own tools read; for S3 also from the
//! files of `aws configure`. docs/storage.md has the list.
//!
//! **Invariant:** secrets are handed to `object_store` and to [`Secrets`], which takes them out of texts, and are kept
//! nowhere else.

use std::sync::Arc;

use object_store::ObjectStore;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::http::HttpBuilder;
use object_store::{BackoffConfig, RetryConfig};

use super::super::open::StorageVariables;
use super::client::Client;
use super::crypto::Crypto;
use super::profile;

/// What kind of store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    S3,
    Google,
    Azure,
    Web,
}

/// A store and a path within it.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(super) kind: Kind,
    /// `s3://bucket`, `https://host:port`.
    pub(super) base: String,
    /// The bucket, container or host.
    pub(super) authority: String,
    /// The path of the URL, without encoding.
    pub(crate) path: String,
}

/// Texts that must not be shown.
#[derive(Default)]
pub(super) struct Secrets(Vec<String>);

impl Place {
    /// Takes a URL apart that was split at `://` and the first `/`.
    pub(crate) fn new(scheme: &str, authority: &str, path: &str) -> Result<Place, String> {
        let kind = match scheme {
            "s3" | "s3a" => Kind::S3,
            "gs" | "gcs" => Kind::Google,
            "az" | "azure" | "abfs" | "abfss" => Kind::Azure,
            "http" | "https" => Kind::Web,
            _ => {
                return Err(format!(
                    "{scheme}:// is not known; there are s3://, gs://, az://, abfs://, nfs://, http://, https:// and \
                     file://"
                ));
            }
        };
        let mut path = path.to_owned();
        if kind == Kind::Web {
            if path.contains('?') || path.contains('#') {
                return Err(
                    "a URL of a web server must not have a query (?) or a part (#): objects are named by their \
                            path alone"
                        .to_owned(),
                );
            }
            if authority.contains('@') {
                return Err("a URL of a web server must not have a user name and password".to_owned());
            }
            path = String::from_utf8(percent_decoded(&path)).map_err(|_| "its path is not UTF-8".to_owned())?;
        }
        // The name of a bucket would be shown, and sent to the store.
        let named = authority.rsplit_once('@');
        if named.is_some_and(|(user, _)| user.contains(':') || matches!(kind, Kind::S3 | Kind::Google)) {
            return Err("a user name and password are no part of the URL: set the store's variables".to_owned());
        }
        Ok(Place { kind, base: format!("{scheme}://{authority}"), authority: authority.to_owned(), path })
    }

    /// A client of the store, what it is called among caches, and what must not be shown.
    pub(super) fn connect(
        &self,
        variables: &StorageVariables,
        client: Client,
    ) -> Result<(Arc<dyn ObjectStore>, String, Secrets), String> {
        super::crypto::check_processor()?;
        let mut secrets = Secrets::new(variables);
        let (store, identity): (object_store::Result<Arc<dyn ObjectStore>>, String) = match self.kind {
            Kind::S3 => {
                let (builder, endpoint) = self.s3(variables, &mut secrets)?;
                let builder = builder.with_retry(once()).with_http_connector(client);
                let built = builder.with_crypto_provider(Arc::new(Crypto)).build();
                (built.map(|it| Arc::new(it) as _), endpoint)
            }
            Kind::Google => {
                let mut builder = GoogleCloudStorageBuilder::new();
                for (name, value) in variables.iter().filter(|(name, _)| name.starts_with("GOOGLE_")) {
                    if let Ok(key) = name.to_ascii_lowercase().parse() {
                        builder = builder.with_config(key, value);
                    }
                }
                let builder = builder.with_url(self.base.replacen("gcs://", "gs://", 1));
                let builder = builder.with_retry(once()).with_http_connector(client);
                let built = builder.with_crypto_provider(Arc::new(Crypto)).build();
                (built.map(|it| Arc::new(it) as _), text(variables, "GOOGLE_BASE_URL"))
            }
            Kind::Azure => {
                let mut builder = MicrosoftAzureBuilder::new();
                for (name, value) in variables.iter().filter(|(name, _)| name.starts_with("AZURE_")) {
                    if let Ok(key) = name.to_ascii_lowercase().parse() {
                        builder = builder.with_config(key, value);
                    }
                }
                let builder = builder.with_url(&self.base).with_retry(once()).with_http_connector(client);
                let built = builder.with_crypto_provider(Arc::new(Crypto)).build();
                let account = ["AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"];
                (built.map(|it| Arc::new(it) as _), account.map(|name| text(variables, name)).join(" "))
            }
            Kind::Web => {
                let builder = HttpBuilder::new().with_url(&self.base).with_retry(once()).with_http_connector(client);
                (builder.build().map(|it| Arc::new(it) as _), String::new())
            }
        };
        let store = store.map_err(|error| secrets.hide(&format!("{error}; {}", self.sources())))?;
        Ok((store, format!("{} {identity}", self.base), secrets))
    }

    /// S3 with the variables, and with what of a profile they do not say. Also returns the endpoint.
    fn s3(&self, variables: &StorageVariables, secrets: &mut Secrets) -> Result<(AmazonS3Builder, String), String> {
        let mut builder = AmazonS3Builder::new().with_bucket_name(&self.authority);
        let mut endpoint = String::new();
        let profile = profile::read(variables)?;
        secrets.0.extend(
            profile
                .iter()
                .filter(|(name, _)| name.ends_with("key") || name.ends_with("token"))
                .map(|(_, value)| value.clone()),
        );
        let has_keys = variables.get("AWS_ACCESS_KEY_ID").is_some();
        let of_profile = profile.iter().filter(|(name, _)| !(has_keys && name.starts_with("aws_")));
        let of_profile = of_profile.map(|(name, value)| (name.clone(), value.as_str()));
        let of_variables = variables.iter().filter(|(name, _)| name.starts_with("AWS_"));
        let of_variables = of_variables.map(|(name, value)| (name.to_ascii_lowercase(), value));
        for (name, value) in of_profile.chain(of_variables) {
            let Ok(key) = name.parse::<AmazonS3ConfigKey>() else { continue };
            // The bucket is that of the URL.
            if matches!(key, AmazonS3ConfigKey::Bucket) {
                continue;
            }
            if matches!(key, AmazonS3ConfigKey::Endpoint | AmazonS3ConfigKey::S3Endpoint) {
                value.clone_into(&mut endpoint);
            }
            builder = builder.with_config(key, value);
        }
        Ok((builder, endpoint))
    }

    /// Where credentials are looked for.
    pub(super) fn sources(&self) -> &'static str {
        match self.kind {
            Kind::S3 => {
                "credentials are looked for in AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN; in the \
                 profile AWS_PROFILE (or `default`) of ~/.aws/credentials and ~/.aws/config \
                 (AWS_SHARED_CREDENTIALS_FILE, AWS_CONFIG_FILE); in AWS_WEB_IDENTITY_TOKEN_FILE with AWS_ROLE_ARN; and \
                 at the metadata server of the container or instance. For a public bucket set AWS_SKIP_SIGNATURE=true"
            }
            Kind::Google => {
                "credentials are looked for in the files GOOGLE_APPLICATION_CREDENTIALS and GOOGLE_SERVICE_ACCOUNT, in \
                 ~/.config/gcloud/application_default_credentials.json (`gcloud auth application-default login`), and \
                 at the metadata server of the machine. For a public bucket set GOOGLE_SKIP_SIGNATURE=true"
            }
            Kind::Azure => {
                "credentials are looked for in AZURE_STORAGE_ACCOUNT_NAME with AZURE_STORAGE_ACCOUNT_KEY or \
                 AZURE_STORAGE_SAS_KEY, in AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_CLIENT_SECRET or \
                 AZURE_FEDERATED_TOKEN_FILE, and at the metadata server of the machine. For a public container set \
                 AZURE_SKIP_SIGNATURE=true"
            }
            Kind::Web => "web servers are asked without credentials",
        }
    }
}

impl Secrets {
    fn new(variables: &StorageVariables) -> Secrets {
        let is_secret = |name: &str| {
            let is_cloud = ["AWS_", "AZURE_", "GOOGLE_"].iter().any(|begin| name.starts_with(begin));
            let words = ["SECRET", "TOKEN", "SAS", "ACCOUNT_KEY", "PASSWORD", "ACCESS_KEY"];
            is_cloud
                && !name.ends_with("_FILE")
                && !name.ends_with("KEY_ID")
                && words.iter().any(|word| name.contains(word))
        };
        Secrets(variables.iter().filter(|(name, _)| is_secret(name)).map(|(_, value)| value.to_owned()).collect())
    }

    /// A text without them.
    pub(super) fn hide(&self, text: &str) -> String {
        // Short ones are no secrets, and would take common words out.
        let secrets = self.0.iter().filter(|secret| secret.len() >= 6);
        secrets.fold(text.to_owned(), |text, secret| text.replace(secret.as_str(), "(hidden)"))
    }
}

/// `object_store` sends every request once; repeating is `fetch`'s.
fn once() -> RetryConfig {
    RetryConfig { backoff: BackoffConfig::default(), max_retries: 0, retry_timeout: std::time::Duration::from_secs(60) }
}

fn text(variables: &StorageVariables, name: &str) -> String {
    variables.get(name).unwrap_or_default().to_owned()
}

/// A text with `%41` as `A`. What is no such code is left as it is.
pub(super) fn percent_decoded(text: &str) -> Vec<u8> {
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let code = bytes.get(at + 1..at + 3).filter(|_| bytes[at] == b'%');
        let code = code.and_then(|code| std::str::from_utf8(code).ok());
        match code.and_then(|code| u8::from_str_radix(code, 16).ok()) {
            Some(byte) => {
                decoded.push(byte);
                at += 3;
            }
            None => {
                decoded.push(bytes[at]);
                at += 1;
            }
        }
    }
    decoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_taken_apart() {
        let place = Place::new("s3", "bucket", "a b/c?d#e%20").unwrap();
        assert_eq!((place.kind, place.path.as_str(), place.base.as_str()), (Kind::S3, "a b/c?d#e%20", "s3://bucket"));
        let place = Place::new("https", "host:1", "a%20b/%C3%A4").unwrap();
        assert_eq!((place.kind, place.path.as_str()), (Kind::Web, "a b/ä"));
        assert!(Place::new("https", "host", "a?b").unwrap_err().contains("query"));
        assert!(Place::new("https", "me:pass@host", "a").is_err());
        for (scheme, authority) in [("s3", "me:pass@bucket"), ("gs", "me@bucket"), ("abfs", "c:pass@a.dfs.windows.net")]
        {
            let error = Place::new(scheme, authority, "a").err().unwrap();
            assert!(error.contains("no part of the URL") && !error.contains("pass@"), "{error}");
        }
        assert!(Place::new("ftp", "host", "a").unwrap_err().contains("s3://"));
    }

    #[test]
    fn secrets_are_taken_out_of_texts() {
        let variables: StorageVariables = [
            ("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI"),
            ("AWS_ACCESS_KEY_ID", "AKIAIOSFODNN7EXAMPLE"),
            ("AZURE_STORAGE_SAS_KEY", "sv=1&sig=abcdef"),
            ("AWS_WEB_IDENTITY_TOKEN_FILE", "/var/run/token"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into_iter()
        .collect();
        let hidden = Secrets::new(&variables).hide("wJalrXUtnFEMI AKIAIOSFODNN7EXAMPLE sv=1&sig=abcdef /var/run/token");
        assert_eq!(hidden, "(hidden) AKIAIOSFODNN7EXAMPLE (hidden) /var/run/token");
    }

    #[test]
    fn percent_codes_are_decoded_and_others_stay() {
        assert_eq!(percent_decoded("a%41%zz%4"), b"aA%zz%4");
        assert_eq!(percent_decoded("%é%"), "%é%".as_bytes());
    }
}
