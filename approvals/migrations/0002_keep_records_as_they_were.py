"""What was decided stays as it was decided: rules, requests and tries to decide are held by the database as well."""

from django.db import migrations

GUARDS = """
CREATE FUNCTION approvals_policy_is_kept() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF to_jsonb(OLD) - 'retired_at' <> to_jsonb(NEW) - 'retired_at' OR OLD.retired_at IS NOT NULL THEN
        RAISE EXCEPTION 'version % of policy % cannot change: write a new one', OLD.version, OLD.name
            USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER approvals_policy_is_kept BEFORE UPDATE ON approvals_policy
    FOR EACH ROW EXECUTE FUNCTION approvals_policy_is_kept();

CREATE FUNCTION approvals_approval_moves() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF (to_jsonb(OLD) - '{state,decided_at,decided_by,reason,deadline_at}'::text[])
       <> (to_jsonb(NEW) - '{state,decided_at,decided_by,reason,deadline_at}'::text[]) THEN
        RAISE EXCEPTION 'request % cannot change: what was asked stays as it was asked', OLD.id
            USING ERRCODE = 'check_violation';
    END IF;
    IF OLD.state = 'waiting' AND NEW.state <> 'voided'
       OR (OLD.state = NEW.state OR (OLD.state, NEW.state) = ('granted', 'voided'))
          AND (OLD.decided_at, OLD.decided_by, OLD.reason) = (NEW.decided_at, NEW.decided_by, NEW.reason) THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION 'request % cannot go from % to %', OLD.id, OLD.state, NEW.state USING ERRCODE = 'check_violation';
END $$;
CREATE TRIGGER approvals_approval_moves BEFORE UPDATE ON approvals_approval
    FOR EACH ROW EXECUTE FUNCTION approvals_approval_moves();

CREATE FUNCTION approvals_decision_is_kept() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'decision % is on record and cannot change', OLD.id USING ERRCODE = 'check_violation';
END $$;
CREATE TRIGGER approvals_decision_is_kept BEFORE UPDATE ON approvals_decision
    FOR EACH ROW EXECUTE FUNCTION approvals_decision_is_kept();
"""
NO_GUARDS = """
DROP TRIGGER approvals_decision_is_kept ON approvals_decision; DROP FUNCTION approvals_decision_is_kept;
DROP TRIGGER approvals_approval_moves ON approvals_approval; DROP FUNCTION approvals_approval_moves;
DROP TRIGGER approvals_policy_is_kept ON approvals_policy; DROP FUNCTION approvals_policy_is_kept;
"""


class Migration(migrations.Migration):
    dependencies = [("approvals", "0001_requests")]
    operations = [migrations.RunSQL(GUARDS, NO_GUARDS)]
