"""Who made and took back each API key, in the row and in the audit record, whatever the way."""

from django.db import migrations, models

GUARDS = """
CREATE FUNCTION runs_audit_key() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    made boolean := TG_OP = 'INSERT';
    what text := jsonb_build_object(
        'user', CASE WHEN made THEN NEW.created_by ELSE NEW.revoked_by END, 'project', NEW.project_id,
        'prefix', NEW.prefix, 'name', NEW.name, 'scopes', NEW.scopes, 'acts_as', NEW.user_id,
        'expires_at', NEW.expires_at)::text;
BEGIN
    INSERT INTO runs_auditentry (action, content_hash, detail)
    VALUES (CASE WHEN made THEN 'key.created' ELSE 'key.revoked' END,
            encode(sha256(convert_to(what, 'UTF8')), 'hex'), what);
    RETURN NULL;
END $$;
CREATE TRIGGER kernel_audit AFTER INSERT ON runs_apikey FOR EACH ROW EXECUTE FUNCTION runs_audit_key();
CREATE TRIGGER kernel_audit_revoked AFTER UPDATE OF revoked_at ON runs_apikey FOR EACH ROW
    WHEN (OLD.revoked_at IS NULL AND NEW.revoked_at IS NOT NULL) EXECUTE FUNCTION runs_audit_key();
"""
NO_GUARDS = """
DROP TRIGGER kernel_audit_revoked ON runs_apikey; DROP TRIGGER kernel_audit ON runs_apikey;
DROP FUNCTION runs_audit_key();
"""


class Migration(migrations.Migration):
    dependencies = [("runs", "0022_messages_of_runs_are_held")]
    operations = [
        migrations.AddField(
            model_name='apikey',
            name='created_by',
            field=models.CharField(blank=True, db_default='', default='', max_length=200),
        ),
        migrations.AddField(
            model_name='apikey',
            name='revoked_by',
            field=models.CharField(blank=True, db_default='', default='', max_length=200),
        ),
        migrations.AlterField(
            model_name='auditentry',
            name='action',
            field=models.CharField(help_text="The event's type, console, or what became of a key.", max_length=100),
        ),
        migrations.RunSQL(GUARDS, NO_GUARDS),
    ]
