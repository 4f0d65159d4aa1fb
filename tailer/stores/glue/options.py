"""The address of Glue and the login, without any secret."""

from dataclasses import dataclass

from tailer.stores.s3.options import S3Options

__all__ = ["GlueOptions"]


@dataclass(frozen=True, slots=True)
class GlueOptions:
    """Address and login of the catalog for one database; see `S3Options`. None: as AWS's own tools would."""

    endpoint: str | None = None
    region: str | None = None
    profile: str | None = None
    role_arn: str | None = None
    external_id: str | None = None
    name: str | None = None

    @property
    def login(self) -> S3Options:
        """The options of a client of AWS. Raises `ConfigError` as `S3Options`."""
        return S3Options(
            endpoint=self.endpoint,
            region=self.region,
            profile=self.profile,
            role_arn=self.role_arn,
            external_id=self.external_id,
            name=self.name,
        )
